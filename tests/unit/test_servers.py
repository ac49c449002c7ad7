"""The tests' own redis-server, on a machine that has none yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# It fails beside a second one, as apt-get does, and the server appears before it is complete.
APT_GET = """#!/bin/sh
[ "$1" = install ] || exit 0
/bin/mkdir "{folder}/lock" || exit 100
: > "{folder}/redis-server"; /bin/chmod +x "{folder}/redis-server"
/bin/sleep 0.2
echo complete > "{folder}/redis-server"
/bin/rmdir "{folder}/lock"
"""
SUDO = """#!/bin/sh
shift; exec "$@"
"""
FIND = "from tests.servers import find_server; print(open(find_server()).read(), end='')"


def test_one_of_several_workers_installs_the_server_and_the_others_wait_for_it(
    tmp_path: Path,
) -> None:
    for command, text in (("apt-get", APT_GET.format(folder=tmp_path)), ("sudo", SUDO)):
        (tmp_path / command).write_text(text)
        (tmp_path / command).chmod(0o755)

    workers = [
        subprocess.Popen(
            [sys.executable, "-c", FIND],
            env={"PATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]

    assert [worker.communicate() for worker in workers] == [("complete\n", "")] * 4
