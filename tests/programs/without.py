"""A process in which some packages cannot be imported, as on a machine where they are not
installed.

usage: without.py package,package... URL... Says for each URL which error a limiter there gets; then
works in memory; then says which packages were imported all the same.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class Missing(MetaPathFinder):
    """Finds that nothing is there, before any other finder looks."""

    def __init__(self, packages: set[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(packages: set[str], urls: list[str]) -> None:
    sys.meta_path.insert(0, Missing(packages))
    from headgate import Concurrency, Limiter, Semaphore

    for url in urls:
        for kind, asked in ((Limiter, {"store": url}), (Semaphore, {"redis_url": url})):
            try:
                kind("x", "5/second" if kind is Limiter else 1, **asked)
            except ImportError as error:
                print(type(error).__name__, error)
    with Limiter("x", Concurrency(1), "5/second").acquire() as permit:
        print("in memory", permit.held)
    print("imported", sorted(packages & {name.partition(".")[0] for name in sys.modules}))


main(set(sys.argv[1].split(",")), sys.argv[2:])
