"""One limiter, a separate state for each tenant: a tenant that asks too often is refused at once,
and the others notice nothing.

The service knows some words; its customers come as (tenant, word). Run it: `python
examples/keyed_tenants.py`
"""

from __future__ import annotations

from collections import Counter

from headgate import Limiter

WORDS = frozenset({"headgate", "holds", "calls", "to", "what", "a", "service", "allows"})
tenants = Limiter("search", "3 per hour burst 3")


def search(tenant: str, word: str) -> str:
    permit = tenants[tenant].try_acquire()
    if not permit:
        return f"429, retry after {permit.retry_after / 60:.0f} minutes"
    return "found" if word in WORDS else "not found"


def main() -> None:
    asked = [("ann", "calls")] * 5 + [("bob", "calls"), ("bob", "salmon")]
    for (tenant, answer), times in Counter(
        (tenant, search(tenant, word)) for tenant, word in asked
    ).items():
        print(f"{tenant}: {times} x {answer}")


if __name__ == "__main__":
    main()
