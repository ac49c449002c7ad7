"""The facts of the machine and all versions, as they are at this moment."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "headgate",
    "self-limiters",
    "redis-rate-limiters",
    "steindamm",
    "throttled-py",
    "limits",
    "aiolimiter",
    "redis",
    "hiredis",
)


def facts(redis_version: str = "") -> str:
    """`redis_version`: empty if no server takes part."""
    server = f", redis-server {redis_version}" if redis_version else ""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{platform.python_implementation()} {platform.python_version()}{server}, "
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, load {load:.1f} at the "
        "start"
    )


def versions() -> str:
    return ", ".join(f"{package} {version_of(package)}" for package in PACKAGES)


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
