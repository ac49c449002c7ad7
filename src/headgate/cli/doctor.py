"""`headgate doctor`: faults of a store and of its use, by severity, each with its remedy."""

from __future__ import annotations

import platform
from argparse import Namespace
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import headgate
from headgate.cli.exits import FAILED, OK
from headgate.cli.output import emit
from headgate.cli.store import redis_store_of

if TYPE_CHECKING:
    from headgate.stores.redis.diagnosis import Diagnosis, Finding

PACKAGES = "redis", "hiredis", "valkey"


async def doctor(args: Namespace) -> int:
    diagnosis = await redis_store_of(args).diagnose()
    packages = versions()
    facts = {
        "versions": packages,
        "servers": diagnosis.servers,
        "findings": [asdict(each) for each in diagnosis.findings],
    }
    emit(args, "doctor", facts, report(diagnosis, packages))
    serious = any(each.severity == "serious" for each in diagnosis.findings)
    return FAILED if serious else OK


def versions() -> dict[str, str]:
    found = {"headgate": headgate.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def report(diagnosis: Diagnosis, packages: dict[str, str]) -> str:
    parts = [paragraph(each) for each in diagnosis.findings] or ["No findings."]
    servers = [
        f"{found or 'unknown version'} at {place}" for place, found in diagnosis.servers.items()
    ]
    clients = [f"{package} {found}" for package, found in packages.items()]
    parts.append(f"versions: {', '.join([*clients, *servers])}")
    return "\n".join(parts).encode("ascii", "backslashreplace").decode()


def paragraph(finding: Finding) -> str:
    head = f"{finding.severity}: {finding.check} of {finding.subject}"
    return f"{head}\n  {finding.text}\n  remedy: {finding.remedy}"
