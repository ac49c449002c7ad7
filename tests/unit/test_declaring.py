"""What a thread declares while a loop hears what became of what was said before: nothing of it is lost (F11)."""

from __future__ import annotations

import pytest

from headgate import Concurrency
from headgate.gate.rules import Declaration, rules_of
from headgate.limits import Limit
from headgate.stores.redis.calls import DECLARED, KNOWN, UPDATED
from headgate.stores.redis.line import RedisLine
from headgate.stores.redis.store import redis_store
from tests.interleaving import Interleaving

STORIES = 60


def declaration(limit: Limit) -> Declaration:
    return Declaration(rules_of([limit]))


ONE, TWO, OTHERS = map(declaration, (Concurrency(1), Concurrency(2), Concurrency(3)))

HEARD = {
    "it was carried out": lambda line: line.carried(ONE.program, DECLARED),
    "others hold": lambda line: line.overruled(OTHERS),
    "it was turned down": lambda line: line.turned_down(ONE.program, OTHERS, 1),
}


@pytest.mark.parametrize("heard", HEARD)
@pytest.mark.parametrize("how", [DECLARED, KNOWN])
def test_an_update_holds_whatever_is_heard_meanwhile(name: str, heard: str, how: int) -> None:
    """Given limits that a call declared or knew, when a thread updates them while the loop hears of that, then the update is still

    to be said; and whatever call is written meanwhile, none says that it updates to anything else.
    """
    for seed in range(STORIES):
        among = Interleaving(seed)
        line = RedisLine(redis_store("redis://localhost:1"), name, ONE)
        line.declares = how
        line._lock = among.lock()
        said = []

        among.run(
            lambda line=line: line._updated(TWO),
            lambda line=line: HEARD[heard](line),
            lambda line=line, said=said: said.extend(line.said() for _ in range(3)),
        )

        assert line.said() == (TWO, UPDATED)
        assert [declared for declared, declares in said if declares == UPDATED and declared is not TWO] == []


def test_a_child_of_a_fork_waits_for_no_thread_of_its_parent(name: str) -> None:
    """Given a thread that declares at the moment of a fork, then the child, which has no such thread, may release and declare."""
    store = redis_store("redis://localhost:1")
    line = store.line(name, ONE)
    line._lock.acquire()

    store.forked()

    assert line._lock.acquire(blocking=False)
