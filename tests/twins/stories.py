"""How stories are made up from a seed: limits of every kind and mixture, steps that like the edges;
and how one is cut short.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headgate.gate.compile import program, rules_of
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from tests.twins.driver import Story
from tests.twins.kept import HOLD
from tests.twins.model import KEEP, SESSION_LIFE

PERIODS = [0.001, 0.007, 0.333333, 1, 60, 3600]
LEASES = [0.02, 1, 30, 600]  # the last is longer than anything else that is remembered
EDGES = [0, 1, 20_000, 50_000, SESSION_LIFE, KEEP, KEEP + SESSION_LIFE, HOLD]
HELD = [[], [], ["permits"], ["permits"], ["mb"], ["permits", "mb"]]
RATED = ["requests", "requests", "tokens"]
MAX_SLEEPS = [None, None, None, None, None, 0, 1, 1_000, 50_000, 1_000_000, 100_000_000]
CROWDS = [1, 1, 1, 1, 1, 1, 1, 1, 1, 40]  # mostly few, sometimes more than one call may look at
OPERATIONS = [
    "amend",
    "amend",
    "cancel",
    "cancel",
    "release",
    "release",
    "release",
    "renew",
    "settle",
    "status",
    "drain",
    "drain",
    "pause",
    "whole",
    "rejoin",
    "rejoin",
    "resume",
    "reset",
    "declared",
]
PAUSES = [1, 1_000, 20_000, 50_000, 1_000_000]
STEPS = {
    "call": 20,
    "time": 8,
    "to_head": 6,
    "to_grant": 2,
    "declare": 3,
    "update": 0.5,
    "listen": 2,
    "again": 3,
    "die": 0.3,
    "start_over": 0.3,
    "lose": 0.1,
}


class Author:
    """Makes up stories; the same seed, the same story."""

    def __init__(self, seed: object) -> None:
        self.dice = random.Random(str(seed))
        self.period = self.dice.choice(
            PERIODS
        )  # most limits of one story have periods that get into each other's way
        self.crowd = self.dice.choice(CROWDS)

    def story(self, length: int) -> Story:
        return {"programs": self.programs(), "steps": [self.step() for _ in range(length)]}

    def crowded_window(self, length: int) -> Story:
        """Grants at more moments of a period than a window keeps, and all else in between."""
        dice, per = self.dice, int(self.period * 1_000_000)
        pace = per // dice.randint(130, 600)
        steps: list[list[Any]] = []
        for _ in range(length):
            requests = [["acquire", 1, self.asked(1), dice.choice([0, 0, None]), None]]
            operation = self.operation()
            if operation[0] in ("settle", "cancel", "status") or dice.random() < 0.005:
                requests.insert(0, operation)
            steps += [["time", per // 3 if dice.random() < 0.005 else dice.choice([1, pace, pace])]]
            steps += [self.step()] if dice.random() < 0.005 else [["call", 0, 0, requests]]
        windows = [
            Window(dice.randint(300, 3_000), dice.choice([self.period, self.period, 2.0]), unit)
            for unit in ("requests", "requests", "tokens")
        ]
        return {"programs": [program(rules_of([window])) for window in windows], "steps": steps}

    # Limits ---------------------------------------------------------------------------------------

    def programs(self) -> list[str]:
        """Declarations that follow one another under one name; mostly the held units stay counted
        in the same units.
        """
        units = self.dice.choice(HELD)
        return [
            self.program(units if self.dice.random() < 0.8 else self.dice.choice(HELD))
            for _ in range(3)
        ]

    def program(self, units: list[str]) -> str:
        held: list[Limit] = [
            Concurrency(self.amount(), self.dice.choice(LEASES), unit) for unit in units
        ]
        limits = held + [self.rated() for _ in range(self.dice.randint(0 if held else 1, 3))]
        self.dice.shuffle(limits)
        return program(rules_of(limits))

    def rated(self) -> Limit:
        dice, unit = self.dice, self.dice.choice(RATED)
        per = self.period if dice.random() < 0.7 else dice.choice(PERIODS)
        slack = dice.choice([0, 0, 0.0005])
        match dice.randrange(4):
            case 0:
                return Window(self.amount(), per, unit, slack)
            case 1:
                anchor = dice.choice([None, 0.25, 1_700_000_000, -5])
                return Quota(
                    self.amount(), per, anchor, unit, dice.choice([0, per / 10, per * 0.3])
                )
            case _:
                capacity = dice.choice([None, self.amount()])
                amount = self.amount()
                initial = dice.choice([None, None, 0, dice.randint(0, capacity or amount)])
                return Rate(amount, per, capacity, initial, dice.random() < 0.4, unit, slack)

    def amount(self) -> int:
        return self.dice.choice([1, 1, 2, 3, 5, 10, 20]) * self.crowd

    # Steps ----------------------------------------------------------------------------------------

    def step(self) -> list[Any]:
        kind = self.dice.choices(list(STEPS), list(STEPS.values()))[0]
        return [kind, *getattr(self, kind)()]

    def time(self) -> list[Any]:
        """Tiny, about a period or a part of one, about the memory of the script, and backwards."""
        dice, period = self.dice, int(self.period * 1_000_000)
        match dice.randrange(8):
            case 0:
                return [-dice.randint(1, 2 * period)]
            case 1:
                return [dice.choice(EDGES) + dice.choice([-1, 0, 1])]
            case 2 | 3:
                return [period // dice.choice([1, 1, 2, 3, 10]) + dice.choice([-1, 0, 1])]
            case _:
                return [dice.randint(0, period // 2)]

    def to_head(self) -> list[Any]:
        return [self.dice.choice([0, 0, 0, -1, 1, -50_000])]

    def to_grant(self) -> list[Any]:
        return [self.dice.randrange(12), self.dice.choice([0, 0, -1, 1])]

    def declare(self) -> list[Any]:
        return [self.dice.randrange(3), self.dice.randrange(3)]

    def update(self) -> list[Any]:
        return [self.dice.randrange(3), self.dice.randrange(3), self.dice.choice([None, 0, 1, 2])]

    def listen(self) -> list[Any]:
        return [self.dice.randrange(3)]

    def again(self) -> list[Any]:
        return [
            self.dice.randrange(3),
            self.dice.choice([0, 0, 1, 2, 10]),
            self.dice.random() < 0.02,
        ]

    def die(self) -> list[Any]:
        return [self.dice.randrange(3)]

    def start_over(self) -> list[Any]:
        return [self.dice.randrange(3), self.dice.random() < 0.7]

    def lose(self) -> list[Any]:
        return [self.dice.choice(["", "who"])]

    def call(self) -> list[Any]:
        dice = self.dice
        requests = [self.operation() for _ in range(dice.choice([0, 0, 0, 1, 1, 2]))]
        requests += [self.acquire() for _ in range(dice.choice([0, 1, 1, 1, 2]))]
        if dice.random() < 0.3:
            requests = [
                ["acquire", 1, self.asked(1), dice.choice(MAX_SLEEPS), None]
            ]  # calls that may be quick
        if dice.random() < 0.2:
            dice.shuffle(requests)
        return [dice.randrange(3), dice.choice([0, 50_000, 50_000, 1_000_000]), requests]

    def acquire(self) -> list[Any]:
        dice = self.dice
        most_waiters = dice.choice([None, None, None, None, dice.randrange(5)])
        return [
            "acquire",
            dice.choice([1, 1, 1, 2, 5]) * self.crowd,
            self.asked(1),
            dice.choice(MAX_SLEEPS),
            most_waiters,
        ]

    def operation(self) -> list[Any]:
        kind = self.dice.choice(OPERATIONS)
        if kind in ("resume", "reset", "declared"):
            return [kind]
        if kind == "status":
            return [kind, self.asked(1)]
        if kind == "drain":
            before = self.dice.choice(
                [0, 0, 1, 1_000, int(self.period * 500_000), int(self.period * 1_000_000)]
            )
            return [
                kind,
                self.dice.choice(["requests", "tokens"]),
                self.dice.choice([0, 0, self.amount()]),
                self.amount() // 4,  # mostly 0: a statement lowers a count only if it is less
                before,
            ]
        if kind in ("pause", "whole"):
            return [kind, self.dice.choice([*PAUSES, int(self.period * 1_000_000)])]
        details = {
            "cancel": [self.dice.random() < 0.8, self.dice.choice([1, 1, 1, 2, 5]) * self.crowd],
            "release": [self.dice.choice([1, 1, 1, 2, 5]) * self.crowd],
            "settle": [self.asked(-4)],
            "amend": [self.asked(1)],
            "renew": [round(self.dice.choice(LEASES) * 1_000_000)],
        }
        return [kind, self.dice.randrange(12), *details.get(kind, [])]

    def asked(self, least: int) -> str:
        """Mostly the default units, sometimes other costs; some exceed every limit."""
        dice = self.dice
        if least == 1 and dice.random() < 0.6:
            return "-"
        units = dice.sample(["mb", "requests", "tokens"], dice.randint(1, 2))
        return ",".join(
            f"{unit}={dice.randint(least, dice.choice([2, 3, 7]))}" for unit in sorted(units)
        )


def cut(story: Story, fails: Callable[[Story], bool]) -> Story:
    """The same failure with as few steps as can be: whole stretches are left out, then shorter
    ones, down to single steps.
    """
    size = len(story["steps"]) // 2
    while size:
        start = 0
        while start < len(story["steps"]):
            shorter = {**story, "steps": story["steps"][:start] + story["steps"][start + size :]}
            if fails(shorter):
                story = shorter
            else:
                start += size
        size //= 2
    return story
