"""`cagrpc completion`: a static script, so that completing a word starts no Python."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from cagrpc.output import say

SUMMARY = "print the completion script for a shell"
DETAILS = "`source <(cagrpc completion bash)` in ~/.bashrc, or with zsh, after compinit, in ~/.zshrc."
PREPARE = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}
SCRIPT = """\
_cagrpc() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words
    case "${{COMP_WORDS[*]:1:COMP_CWORD-1}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _cagrpc cagrpc
"""
"""What no word fits is completed as a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(PREPARE), metavar="SHELL", help=" or ".join(PREPARE))


def run(options: argparse.Namespace) -> int:
    from cagrpc.cli.main import parser

    cases = "\n".join(f'        {pattern}) words="{" ".join(words)}" ;;' for pattern, words in _cases(parser(), ""))
    say(PREPARE[options.shell] + SCRIPT.format(cases=cases).rstrip("\n"))
    return 0


def _cases(parser: argparse.ArgumentParser, before: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Patterns of the words before the one that is completed, and what it may be; the first that fits counts."""
    words: list[str] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to them
        choices = list(action.choices or ())
        if isinstance(action.choices, dict):
            for name, command in action.choices.items():
                yield from _cases(command, f"{before}{name} ")
        elif action.option_strings and action.nargs != 0:
            yield from ((f'"{before}"*"{flag}"', choices) for flag in action.option_strings)
        words += [*action.option_strings] if action.option_strings else choices
    yield (f'"{before.rstrip()}"*', words)
