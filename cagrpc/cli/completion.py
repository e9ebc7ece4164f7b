"""`cagrpc completion`: a static script, so that completing a word starts no Python; and what kubectl asks of a plug-in
when it completes, `kubectl_complete-cagrpc`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from cagrpc.output import say

SUMMARY = "print the completion script for a shell"
DETAILS = (
    "`source <(cagrpc completion bash)` in ~/.bashrc, or with zsh, after compinit, in ~/.zshrc; with fish"
    " `cagrpc completion fish | source` in ~/.config/fish/config.fish."
)
EXAMPLES = (
    "source <(cagrpc completion bash)",
    "cagrpc completion fish | source",
)
_BASH = """\
_cagrpc() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words
    case " ${{COMP_WORDS[*]:1:COMP_CWORD-1}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _cagrpc cagrpc
"""
"""What no word fits is completed as a file."""
_FISH = """\
function __cagrpc_words
    set -l before (commandline -opc)
    switch " $before[2..-1]"
{cases}
    end
end
complete -c cagrpc -a "(__cagrpc_words)"
"""
_SCRIPTS = {"bash": _BASH, "zsh": f"autoload -U +X bashcompinit && bashcompinit\n{_BASH}", "fish": _FISH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help="bash, zsh or fish")


def run(options: argparse.Namespace) -> int:
    from cagrpc.cli.main import parser

    line = _fish_case if options.shell == "fish" else _bash_case
    cases = (line(pattern, " ".join(words)) for pattern, words in _cases(parser(), ""))
    say(_SCRIPTS[options.shell].format(cases="\n".join(cases)).rstrip("\n"))
    return 0


def for_kubectl() -> int:
    """Print what may come next on a command line of `kubectl cagrpc`, as kubectl wants it of `kubectl_complete-cagrpc`:
    a word on each line, and last a directive. Its arguments are the words so far and the one that is completed."""
    from cagrpc.cli.main import parser

    *before, current = sys.argv[1:] or [""]
    so_far = "".join(f" {word}" for word in before)
    words = next((words for pattern, words in _cases(parser(kubectl=True), "") if fnmatchcase(so_far, pattern)), ())
    for word in words:
        if word.startswith(current):
            say(word)
    say(":0")  # the shell's default, files, where there is none
    return 0


def _cases(parser: argparse.ArgumentParser, before: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield patterns of the words before the one that is completed, and what it may be. The first that fits counts."""
    words: list[str] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to them
        choices = list(action.choices or ())
        if isinstance(action.choices, dict):
            for name, command in action.choices.items():
                yield from _cases(command, f"{before} {name}")
        elif action.option_strings and action.nargs != 0:
            yield from ((f"{before}* {flag}", choices) for flag in action.option_strings)
        words += [*action.option_strings] if action.option_strings else choices
    yield f"{before}*", words


def _bash_case(pattern: str, words: str) -> str:
    quoted = "*".join(f'"{part}"' if part else "" for part in pattern.split("*"))
    return f'        {quoted}) words="{words}" ;;'


def _fish_case(pattern: str, words: str) -> str:
    return f'        case "{pattern}"\n            string split " " -- "{words}"'
