"""What a tenant writes controls neither a terminal nor whoever reads logs or Events: every way out of the process."""

from __future__ import annotations

import io
import json
import logging
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from cagrpc import output
from cagrpc.controllers.events import EventRecorder, EventSource, Note, ObjectRef
from cagrpc.runtime.clock import EpochSeconds
from cagrpc.server import logs
from cagrpc.tables import console, table
from tests.support.examples import examples

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b8m\r\x7f\u202eready"
WRITTEN_OUT = r"\u001b]0;owned\u0007\u001b[2J\u009b8m\u000d\u007f\u202eready"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Writer:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def create(self, _path: str, body: Any) -> dict[str, Any]:
        self.notes.append(body["note"])
        return {}

    def patch(self, _path: str, _body: Any) -> dict[str, Any]:
        return {}


def _event(text: str) -> str:
    writer = _Writer()
    client: Any = writer
    recorder = EventRecorder(client, EventSource("c", "Planning"), clock=lambda: EpochSeconds(0.0))
    recorder.event(Note(ObjectRef("v1", "Pod", "tenant", "it", "1"), "NotPlanned", text))
    recorder.step()
    return writer.notes[0]


def _in_a_table(text: str) -> str:
    stream = io.StringIO()
    cells = table("left out", "why")
    cells.add_row(text)
    console(stream).print(cells)
    return stream.getvalue()


def _in_a_sentence(text: str) -> str:
    stream = io.StringIO()
    console(stream).print(f"not held: {text}")
    return stream.getvalue()


def _logged(stream: io.StringIO, text: str) -> str:
    logs.set_up("info", stream)
    logging.getLogger("cagrpc.test").error("pod %s", text, exc_info=ValueError(text))
    return stream.getvalue()


@pytest.mark.parametrize("way", [_event, _in_a_table, _in_a_sentence, lambda text: _logged(_Terminal(), text)])
def test_control_characters_are_written_out(way: Callable[[str], str]) -> None:
    assert WRITTEN_OUT in way(ATTACK)


def test_json_logs_are_json_all_the_same() -> None:
    line = _logged(io.StringIO(), ATTACK)
    assert json.loads(line)["message"] == f"pod {ATTACK}"
    assert _controls(line) <= {"\n"}


@pytest.mark.parametrize("say", [output.say, output.warn, output.complain])
def test_what_commands_print(say: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    say(ATTACK)
    assert WRITTEN_OUT in "".join(capsys.readouterr())


@given(st.text())
@example("a\tb\nc é \U0001f600")
@example("\ud800\u2028\u2067\x85")
@examples(200)
def test_data_means_the_same(text: str) -> None:
    assert json.loads(output.printable(output.data_text({"it": text}, "json"))) == {"it": text}
    if not any("\ud800" <= each <= "\udfff" for each in text):  # YAML has no way to write half a character
        assert yaml.safe_load(output.printable(output.data_text({"it": text}, "yaml"))) == {"it": text}
    shown = output.printable(text)
    assert _controls(shown) <= {"\t", "\n"}
    assert shown.encode() or not text
    assert output.printable(shown) == shown


def _controls(text: str) -> set[str]:
    """Return the characters that show nothing and change how others look."""
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return {
        each
        for each in text
        if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(each) in directions
    }
