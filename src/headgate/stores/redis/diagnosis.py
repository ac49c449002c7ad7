"""Faults of a store and of its use that an operator can remove, each with its remedy.

First come the servers: connection, rights, state, memory, clock and version. Then come the names in
use: declarations that disagree, and members of dead processes. An examination changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from redis.exceptions import RedisError

from headgate.errors import StoreError
from headgate.gate.compile import read_program
from headgate.keys import title
from headgate.stores.limit_history import HOLD
from headgate.stores.redis.listing import encoded_names
from headgate.stores.redis.members import moment, read_members
from headgate.stores.redis.protocol.former import last_replaced
from headgate.stores.redis.protocol.members import HOLDING, WAITING
from headgate.stores.redis.transport.endpoint import LOST
from headgate.stores.redis.transport.eviction_check import dangerous
from headgate.stores.redis.transport.failures import failure_text
from headgate.stores.redis.transport.probes import FUNCTIONS, SCRIPTS, Probed, probe
from headgate.stores.redis.transport.questions import replies_to

if TYPE_CHECKING:
    from headgate.stores.redis.transport.topology import Topology

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = "serious", "warning", "note"
# headgate mostly works without these rights.
OPTIONAL = {"info", "ping", "cluster|slots", "asking"}
OLDEST = (6, 2)  # the oldest version of Redis that headgate is tested with
FULL = 0.9  # memory counts as nearly full above this share of maxmemory
SKEW = 1.0  # seconds by which clocks may differ
CHUNK = 500  # names that share one round trip
DOCUMENT = 'see "What the server needs" in docs/redis.md'


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    check: str
    subject: str  # a server, or a limiter
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`servers`: the version of each server by its address; empty: unknown."""

    servers: dict[str, str]
    findings: list[Finding]


async def diagnose(topology: Topology) -> Diagnosis:
    """Examine all servers of a store, and its names. The most severe findings come first."""
    try:
        await topology.look(suspects=())
    except LOST as error:
        return Diagnosis({}, [not_reached(str(topology), error)])
    probed: dict[str, Probed] = {}
    findings: list[Finding] = []
    for server in topology.servers():
        try:
            probed[server.place] = await probe(server, topology.sharded)
        except LOST as error:
            findings.append(not_reached(server.place, error))
    for place, found in probed.items():
        findings += server_findings(place, found, topology.several)
    findings += spread_findings(probed)
    if probed:
        findings += await name_findings(topology)
    findings.sort(key=lambda each: SEVERITIES.index(each.severity))
    return Diagnosis({place: version(each.info()) for place, each in probed.items()}, findings)


def not_reached(subject: str, error: Exception) -> Finding:
    remedy = "Check the URL, the network, and that the server runs and accepts the login."
    text = f"it cannot be asked: {failure_text(error)}"
    return Finding("serious", "connection", subject, text, remedy)


# Servers ------------------------------------------------------------------------------------------


def server_findings(place: str, found: Probed, several: bool) -> Iterator[Finding]:
    yield from state_findings(place, found)
    yield from right_findings(place, found)
    yield from script_findings(place, found)
    yield from info_findings(place, found.info(), several)
    if found.skew is not None and abs(found.skew) > SKEW:
        way = "ahead of" if found.skew > 0 else "behind"
        text = f"its clock is {abs(found.skew):.1f} s {way} that of this machine"
        remedy = "headgate uses the server's clock alone. Synchronise both, for logs that agree."
        yield Finding("note", "clock", place, text, remedy)


def state_findings(place: str, found: Probed) -> Iterator[Finding]:
    """A server that refuses writes."""
    refusal = found.replies["hset"]
    if not isinstance(refusal, RedisError) or found.is_missing("hset"):
        return
    text = str(refusal)
    # The probe lacks an argument, and a server that accepts writes says so, or says MOVED. redis-py
    # leaves out the word MOVED: the text begins with the number of the slot.
    if "wrong number of arguments" in text or text.partition(" ")[0].isdecimal():
        return
    if "replica" in text.lower() or "READONLY" in text:
        remedy = "Name the primary, or let Sentinel name it: redis+sentinel://."
    elif "maxmemory" in text or "OOM" in text:
        remedy = "Give the server more memory, or headgate a server of its own."
    else:
        remedy = "Wait until it is ready, and read its log."
    yield Finding("serious", "state", place, f"it refuses calls: {text}", remedy)


def right_findings(place: str, found: Probed) -> Iterator[Finding]:
    missing = {
        right: missing_rule(right, str(found.replies[right]))
        for right in found.replies.keys() - unneeded(found)
        if found.is_missing(right)
    }
    severities: dict[Severity, set[str]] = {
        "serious": {rule for right, rule in missing.items() if right not in OPTIONAL},
        "warning": {rule for right, rule in missing.items() if right in OPTIONAL},
    }
    for severity, rules in severities.items():
        if rules:
            rule = " ".join(sorted(rules))
            remedy = f"Grant them with ACL SETUSER USER {rule}: {DOCUMENT}."
            yield Finding(severity, "rights", place, f"the user lacks the rights {rule}", remedy)


def unneeded(found: Probed) -> set[str]:
    """The rights that headgate does not need on this server: those of scripts, or of functions.

    It needs one of the two. If neither works, the user should get the rights of functions.
    """
    if found.works(FUNCTIONS):
        return {*SCRIPTS}
    uses_scripts = found.is_unknown("fcall") or found.works(SCRIPTS)
    return {*FUNCTIONS} if uses_scripts else {*SCRIPTS}


def missing_rule(right: str, refusal: str) -> str:
    """The rule of the ACL that is missing. Redis names a key or a channel that it refuses."""
    if "key" in refusal and "access" in refusal:
        return "~headgate:*"
    if "channel" in refusal and "access" in refusal:
        return "&headgate:*"
    return f"+{right}"


def script_findings(place: str, found: Probed) -> Iterator[Finding]:
    if found.works(FUNCTIONS) or not found.works(SCRIPTS):
        return  # nothing to say, or a right is missing
    text = "headgate sends scripts in place of functions, which is slower"
    if found.is_unknown("fcall"):
        yield Finding("note", "functions", place, text, "Upgrade the server to Redis 7 or Valkey.")
    else:
        remedy = f"Grant the rights +fcall +function|load: {DOCUMENT}."
        yield Finding("warning", "functions", place, text, remedy)


def info_findings(place: str, info: dict[str, str], several: bool) -> Iterator[Finding]:
    """Findings in the reply to INFO. Without the right to INFO there are none."""
    lines = "\n".join(f"{key}:{value}" for key, value in info.items())
    if policy := dangerous(lines):
        text = f"it may evict keys (maxmemory-policy {policy}): a limiter forgets its holders"
        remedy = "Set maxmemory-policy noeviction, or give headgate a server of its own."
        yield Finding("serious", "eviction", place, text, remedy)
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > FULL * most:
        text = f"{used / most:.0%} of its memory is used; acquires fail when it is full"
        yield Finding("warning", "memory", place, text, "Raise maxmemory.")
    numbers = info.get("redis_version", "").split(".")[:2]
    if "" not in numbers and tuple(map(int, numbers)) < OLDEST:
        text = f"{version(info)} is older than the oldest version that headgate is tested with"
        yield Finding("serious", "version", place, text, "Upgrade to Redis 7 or Valkey.")
    if info.get("cluster_enabled") == "1" and not several:
        text = "it is part of a Cluster, and the URL is that of one server"
        yield Finding("serious", "version", place, text, "Write redis+cluster:// in the URL.")


def version(info: dict[str, str]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else ""


def spread_findings(probed: dict[str, Probed]) -> Iterator[Finding]:
    """The clocks of two servers differ. Only the two that differ most are named."""
    skews = {place: each.skew for place, each in probed.items() if each.skew is not None}
    if not skews:
        return
    behind, ahead = min(skews, key=skews.__getitem__), max(skews, key=skews.__getitem__)
    spread = skews[ahead] - skews[behind]
    if spread > SKEW:
        text = f"its clock is {spread:.1f} s ahead of that of {behind}"
        remedy = "Synchronise them: the clock of a name jumps when the name moves between them."
        yield Finding("warning", "clock", ahead, text, remedy)


# Names --------------------------------------------------------------------------------------------


async def name_findings(topology: Topology) -> list[Finding]:
    """Findings about names in use. If the names cannot be read, there are none: `right_findings`
    names the missing rights.
    """
    try:
        names = sorted(await encoded_names(topology, "doctor"))
        findings: list[Finding] = []
        for start in range(0, len(names), CHUNK):
            findings += await findings_of(topology, names[start : start + CHUNK])
    except StoreError:
        return []
    return findings


async def findings_of(topology: Topology, names: Sequence[str]) -> list[Finding]:
    now = await now_of(topology, names[0])
    questions = []
    for name in names:
        key, who = f"headgate:{{{name}}}", f"headgate:{{{name}}}:who"
        questions.append((key, ("HMGET", key, "limits", "former")))
        questions.append((key, ("ZCOUNT", who, "0", str(now))))  # sessions that have expired
        questions.append((key, ("ZCOUNT", who, WAITING[0], HOLDING[1])))  # waiters and holders
    replies = await replies_to(topology, "doctor", questions)
    findings: list[Finding] = []
    each = zip(names, replies[::3], replies[1::3], replies[2::3], strict=True)
    for name, (limits, former), silent, members in each:
        if limits and former:
            findings += declaration_findings(name, limits.decode(), former.decode(), now)
        if silent and members:  # to read them takes two round trips for each name
            findings += await dead_findings(topology, name)
    return findings


async def now_of(topology: Topology, name: str) -> int:
    (reply,) = await replies_to(topology, "doctor", [(f"headgate:{{{name}}}", ("TIME",))])
    return moment(reply)


def declaration_findings(name: str, limits: str, former: str, now: int) -> Iterator[Finding]:
    """The limits were replaced a short time ago. Processes that disagree do so once a minute."""
    entry = last_replaced(former)
    if entry is not None and entry.t > now - HOLD:
        seconds = (now - entry.t) / 1_000_000
        text = (
            f"{in_text(entry.program)} was replaced by {in_text(limits)} {seconds:.0f} s ago; "
            "processes may declare different limits"
        )
        remedy = (
            "If it comes again after a minute, make the code of both agree, or set the limits with "
            "`headgate set`."
        )
        yield Finding("warning", "declarations", title(name), text, remedy)


def in_text(program: str) -> str:
    try:
        return ", ".join(map(str, read_program(program).limits))
    except ValueError:  # an operator has damaged the text
        return repr(program)


async def dead_findings(topology: Topology, name: str) -> list[Finding]:
    members = await read_members(topology, name)
    waiters = sum(each.alive_for is None for each in members.waiters)
    holders = sum((each.lease_left or 0.0) <= 0 for each in members.holders)
    if not waiters and not holders:
        return []
    text = f"processes that are silent still have waiters: {waiters:,}, and permits: {holders:,}"
    remedy = (
        "The next call of any process removes them. If it comes again, find out why processes are "
        "killed or stand still."
    )
    return [Finding("warning", "sessions", title(name), text, remedy)]
