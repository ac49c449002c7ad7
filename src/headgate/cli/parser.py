"""The verbs and their arguments, as argparse reads them.

Each verb names the function that runs it. That module is imported only when the verb runs.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, NoReturn

from headgate.cli.exits import USAGE
from headgate.cli.store import VARIABLE

if TYPE_CHECKING:
    from argparse import _SubParsersAction

MODULES = "headgate.cli"
COMPLETE = "_complete"  # the verb of the scripts in completion.py
EXAMPLES = """\
examples:
  export HEADGATE_STORE=redis://user:password@localhost:6379
  headgate ls
  headgate show api
  headgate pause api 30
  headgate run api -- curl https://localhost/api
  headgate doctor

exit codes:
  0 done; 1 a serious finding of doctor, or a change that was not confirmed; 64 usage;
  66 an unknown name; 69 the store is away; 71 the lease was lost; 75 not now;
  74 stdin or stdout cannot be used
  run: the exit code of the command, or 128 and the number of the signal that ended it
"""


class Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n{self.format_usage()}")


class Verbs:
    """Adds verbs to a parser."""

    def __init__(self, verbs: _SubParsersAction[Parser]) -> None:
        self._verbs = verbs
        self.parsers: dict[str, Parser] = {}

    def add(
        self, verb: str, function: str, summary: str, examples: str = "", json: bool = True
    ) -> Parser:
        """`function`: its module in this package, a colon, and its name there."""
        module, _, name = function.partition(":")
        parser = self._verbs.add_parser(
            verb,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.parsers[verb] = parser
        parser.set_defaults(module=f"{MODULES}.{module}", function=name)
        add_store(parser, SUPPRESS)
        if json:
            parser.add_argument("--json", action="store_true", help="print JSON with a schema")
        return parser

    def add_change(self, verb: str, function: str, summary: str, examples: str) -> Parser:
        parser = self.add(verb, function, summary, examples)
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("--yes", action="store_true", help="do not ask before the change")
        return parser


def add_store(parser: Parser, default: str | None) -> None:
    text = f"the URL of the Redis store; {VARIABLE} if unsaid"
    parser.add_argument("--store", metavar="URL", default=default, help=text)


def add_key(parser: Parser) -> None:
    parser.add_argument("--key", metavar="KEY", help="this key alone")


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of all, and that of each verb."""
    parser = Parser(
        prog="headgate",
        description="See, change and use limiters on Redis.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_store(parser, os.environ.get(VARIABLE))
    verbs = Verbs(parser.add_subparsers(dest="verb", metavar="VERB", required=True))
    add_looks(verbs)
    add_changes(verbs)
    add_run(verbs)
    verbs.add(
        "doctor",
        "doctor:doctor",
        "find faults of the store and of its use, and name their remedies",
        "  headgate doctor\n  headgate doctor --json | jq '.findings[].remedy'",
    )
    add_exporter(verbs)
    add_web(verbs)
    add_completion(verbs)
    return parser, verbs.parsers


def add_looks(verbs: Verbs) -> None:
    show = verbs.add(
        "show",
        "look:show",
        "show the limits of a name, and the processes that hold permits and wait",
        "  headgate show api\n  headgate show api --json\n  headgate show api --key tenant-7",
    )
    show.add_argument("name", metavar="NAME")
    add_key(show)
    names = verbs.add(
        "ls",
        "look:ls",
        "list the names in use, or the keys of a name",
        "  headgate ls\n  headgate ls api",
    )
    names.add_argument("name", metavar="NAME", nargs="?", help="list the keys of this name")
    verbs.add(
        "top",
        "top:top",
        "show the fullest names, live",
        "  headgate top\n  headgate top --json",
    )
    watch = verbs.add(
        "watch",
        "look:watch",
        "print the status of a name each second, a JSON object in each line",
        "  headgate watch api | jq .waiting",
        json=False,
    )
    watch.add_argument("name", metavar="NAME")


def add_changes(verbs: Verbs) -> None:
    limits = verbs.add_change(
        "set",
        "change:set_limits",
        "replace all limits of a name, for the whole fleet",
        "  headgate set api 200/minute '10 concurrent'\n  headgate set api 100/minute --yes",
    )
    limits.add_argument("limits", metavar="LIMIT", nargs="+", help="such as 200/minute")
    pause = verbs.add_change(
        "pause",
        "change:pause",
        "stop all acquires of a name and its keys for a while",
        "  headgate pause api 30\n  headgate pause api 30 --key tenant-7",
    )
    pause.add_argument("seconds", metavar="SECONDS", type=float)
    resume = verbs.add_change(
        "resume",
        "change:resume",
        "end a pause of a name and its keys",
        "  headgate resume api\n  headgate resume api --key tenant-7",
    )
    add_key(pause)
    add_key(resume)
    drain = verbs.add_change(
        "drain",
        "change:drain",
        "lower what is left of budgets of a name",
        "  headgate drain api requests=12\n  headgate drain llm tokens=0 requests=3",
    )
    drain.add_argument("left", metavar="UNIT=LEFT", nargs="+")
    verbs.add_change(
        "reset", "change:reset", "forget what a name has counted", "  headgate reset api --yes"
    )
    forget = verbs.add_change(
        "forget",
        "change:forget",
        "drop the state of a key that is idle",
        "  headgate forget api tenant-7",
    )
    forget.add_argument("key", metavar="KEY")


def add_run(verbs: Verbs) -> None:
    run = verbs.add(
        "run",
        "run:run",
        "run a command when its turn has come",
        "  headgate run api -- curl https://localhost/api\n"
        "  headgate run llm --cost tokens=900 --max-sleep 30 -- ./ask.sh\n"
        "  headgate run jobs --limits '1 concurrent' -- ./nightly.sh\n"
        "  headgate run api --each -P 8 -- ./fetch.sh < addresses.txt\n\n"
        "The command gets HEADGATE_NAME and HEADGATE_FENCE in its environment. With --each it gets "
        "a line\nof stdin as its last argument.",
        json=False,
    )
    run.usage = "headgate run NAME [options] -- COMMAND [ARGUMENT ...]"
    run.add_argument("name", metavar="NAME")
    run.add_argument(
        "--cost",
        metavar="N|UNIT=N",
        action="append",
        default=[],
        help="take N requests, or N of a unit; once for each unit",
    )
    run.add_argument(
        "--max-sleep", metavar="S", type=float, help="wait for at most S seconds; 0: not at all"
    )
    run.add_argument(
        "--limits",
        metavar="LIMITS",
        default="",
        help="declare these limits, as a program would: '100/minute, 5 concurrent'",
    )
    run.add_argument("--each", action="store_true", help="run once for each line of stdin")
    run.add_argument(
        "-P", metavar="N", dest="parallel", type=int, help="with --each: N at once; 1 if unsaid"
    )


def add_exporter(verbs: Verbs) -> None:
    exporter = verbs.add(
        "exporter",
        "exporter:exporter",
        "serve the budgets, queues and pauses of all names to Prometheus",
        "  headgate exporter\n  headgate exporter --host 0.0.0.0 --port 9465",
        json=False,
    )
    exporter.add_argument("--port", metavar="N", type=int, default=9465, help="9465 if unsaid")
    exporter.add_argument(
        "--host",
        metavar="H",
        default="127.0.0.1",
        help="the address to listen on; 127.0.0.1 if unsaid",
    )


def add_web(verbs: Verbs) -> None:
    web = verbs.add(
        "web",
        "web:web",
        "serve a web page that shows all limiters",
        "  headgate web\n"
        "  HEADGATE_WEB_AUTH=ops:a-long-password headgate web --host 0.0.0.0 --actions\n\n"
        "HEADGATE_WEB_AUTH has the user and the password. Without it, the page answers only this "
        "machine.",
        json=False,
    )
    web.add_argument("--port", metavar="N", type=int, default=8765, help="8765 if unsaid")
    web.add_argument(
        "--host",
        metavar="H",
        default="127.0.0.1",
        help="the address to listen on; 127.0.0.1 if unsaid",
    )
    web.add_argument(
        "--actions", action="store_true", help="let users pause, resume and set limits"
    )


def add_completion(verbs: Verbs) -> None:
    completion = verbs.add(
        "completion",
        "completion:completion",
        "print the completion of a shell",
        "  source <(headgate completion bash)\n"
        "  headgate completion fish > ~/.config/fish/completions/headgate.fish",
        json=False,
    )
    completion.add_argument("shell", metavar="SHELL", choices=["bash", "zsh", "fish"])


def parse(words: list[str]) -> Namespace:
    """The arguments. `command` has the words behind the first `--` of `run`."""
    if words[:1] == [COMPLETE]:
        return Namespace(
            module=f"{MODULES}.completion", function="complete", verb=COMPLETE, words=words[1:]
        )
    parser, verbs = make_parser()
    command: list[str] = []
    split = words.index("--") if "--" in words else 0
    if next((word for word in words[:split] if word in verbs), "") == "run":
        words, command = words[:split], words[split + 1 :]
    args = parser.parse_args(words)
    args.command = command
    return args
