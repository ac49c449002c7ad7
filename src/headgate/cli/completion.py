"""Completion of the command line in bash, zsh and fish.

A shell gets a few lines that ask `headgate _complete` for candidates, so the rules exist once. It
costs a start of Python for each Tab.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from itertools import pairwise
from typing import TYPE_CHECKING

from headgate.cli.exits import Failure
from headgate.cli.parser import COMPLETE, make_parser
from headgate.cli.store import VARIABLE, redis_store_of
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from argparse import Action

    from headgate.cli.parser import Parser

SCRIPTS = {
    "bash": f"""\
_headgate() {{
    mapfile -t COMPREPLY < <(headgate {COMPLETE} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null)
}}
complete -o default -F _headgate headgate
""",
    "zsh": f"""\
#compdef headgate
_headgate() {{
    local -a found
    found=("${{(@f)$(headgate {COMPLETE} "${{(@)words[2,CURRENT]}}" 2>/dev/null)}}")
    [[ -n $found ]] && compadd -a found || _files
}}
compdef _headgate headgate
""",
    "fish": f"""\
function _headgate
    headgate {COMPLETE} (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c headgate -f -a '(_headgate)'
complete -c headgate -F -n 'contains -- -- (commandline -opc)'
""",
}


async def completion(args: Namespace) -> None:
    print(SCRIPTS[args.shell], end="")


async def complete(args: Namespace) -> None:
    """Print the candidates for the last of `args.words`, one in each line."""
    *before, last = args.words or [""]
    for word in await candidates(before):
        if word.startswith(last) and word.startswith("-") == last.startswith("-"):
            print(word)


async def candidates(before: list[str]) -> list[str]:
    """The words that may follow those of `before`. Without any, a file or free text may follow."""
    parser, verbs = make_parser()
    first = next((index for index, word in enumerate(before) if word in verbs), len(before))
    options, words = before[:first], before[first + 1 :]
    if "--" in words:
        return []
    if first < len(before):
        parser = verbs[before[first]]
        return await next_words(parser, words, store_in(before))
    return await next_words(parser, options, None)


def store_in(words: list[str]) -> str | None:
    found = os.environ.get(VARIABLE)
    for word, following in pairwise([*words, ""]):
        if word == "--store":
            found = following
        elif word.startswith("--store="):
            found = word.removeprefix("--store=")
    return found


async def next_words(parser: Parser, words: list[str], store: str | None) -> list[str]:
    options = {option: action for action in parser._actions for option in action.option_strings}
    if words and takes_value(options.get(words[-1])):
        return []
    arguments = [action for action in parser._actions if not action.option_strings]
    following = arguments[len(positionals(words, options)) :]
    if not following:
        return [*options]
    if following[0].dest == "name":
        return [*options, *await names(store)]
    return [*options, *(following[0].choices or ())]


async def names(store: str | None) -> list[str]:
    """The names in use that need no quotes in any shell."""
    try:
        found = await redis_store_of(Namespace(store=store)).lists.anames()
    except (Failure, HeadgateError):
        return []  # the verb itself will say why
    return [name for name in found if re.fullmatch(r"[\w./@+-]+", name, re.ASCII)]


def takes_value(option: Action | None) -> bool:
    return option is not None and option.nargs != 0


def positionals(words: list[str], options: dict[str, Action]) -> list[str]:
    """The words that are neither options nor their values."""
    pairs = zip(["", *words], words, strict=False)
    return [
        word
        for before, word in pairs
        if word.partition("=")[0] not in options and not takes_value(options.get(before))
    ]
