"""How commands are used: examples in every help, and what is said of a command line that is wrong, in one line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from cagrpc.errors import did_you_mean

_EXAMPLES = "Examples:\n"


def examples(commands: Iterable[str], *, kubectl: bool = False) -> str:
    """Return the end of a help text."""
    shown = (each.replace("cagrpc ", "kubectl cagrpc ", 1) if kubectl else each for each in commands)
    return _EXAMPLES + "\n".join(f"  {each}" for each in shown)


class _HelpFormatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES) else super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """Says what is wrong in a line, with what was meant as far as that can be guessed, and exits with 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _HelpFormatter, **options})
        self.set_defaults(parser=self)

    def parsed(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Return what `parse_args` does; arguments that are not known are told by the parser of their command."""
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            used: CommandParser = found.parser
            meant = used._meant(unknown[0].partition("=")[0])
            used.error(f"found {' '.join(unknown)}, which is not known here{meant}")
        return found

    def _meant(self, flag: str) -> str:
        """Return which flag was meant. They are compared without their dashes, in which all of them are alike."""
        known = [each.removeprefix("--") for each in self._option_string_actions if each.startswith("--")]
        return did_you_mean(flag.removeprefix("--"), known).replace('"', '"--', 1)

    def error(self, message: str) -> NoReturn:
        flag, _, what = message.removeprefix("argument ").partition(": ")
        if what == "expected one argument":
            what = f"expected a value; one that begins with - is written {flag.rpartition('/')[2]}=VALUE"
        self.exit(2, f"cagrpc: {f'{flag}: {what}' if what else flag}; see `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            raise argparse.ArgumentError(
                action, f"found {value}, expected one of {', '.join(known)}{did_you_mean(value, known)}"
            )


def reference(whole: argparse.ArgumentParser) -> str:
    """Return the reference of a command line as Markdown: what `--help` prints of each command and action."""
    parts = ["# Commands", f"What `{whole.prog} COMMAND --help` prints.", _help(whole)]
    for command in _commands(whole):
        parts += [f"## {command.prog}", _help(command)]
        parts += [text for action in _commands(command) for text in (f"### {action.prog}", _help(action))]
    return "\n\n".join(parts) + "\n"


def _commands(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in of._actions:  # noqa: SLF001 - argparse has no other way to them
        if isinstance(action.choices, dict):
            yield from action.choices.values()


def _help(command: argparse.ArgumentParser) -> str:
    return f"```text\n{command.format_help().rstrip()}\n```"
