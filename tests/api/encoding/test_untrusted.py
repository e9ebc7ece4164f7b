"""Numbers, JSON and protobuf of others: what is plain is read as ever, and the rest costs nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.encoding.json_documents import LARGEST, MOST_LEVELS, json_value, whole_number
from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput

_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST, LARGEST)
    | st.text(alphabet='a"\\{}[]é')
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(st.integers(0, LARGEST))
def test_whole_numbers(number: int) -> None:
    assert whole_number(str(number)) == number
    assert whole_number(str(number), number) == number
    assert whole_number(str(number + 1), number) is None


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1 ", "1_0", "1e3", "²", "९", "9" * 19, "9" * 5_000, None, 5])
def test_anything_else_is_none(text: object) -> None:
    assert whole_number(text) is None


@given(_PLAIN)
def test_plain_json_is_read_as_it_is(value: Any) -> None:
    assert json_value(json.dumps(value).encode()) == value


@pytest.mark.parametrize("quotes", ["", '"}]{[\\"'])
@pytest.mark.parametrize("levels", [MOST_LEVELS - 1, MOST_LEVELS, MOST_LEVELS + 1, 5_000, 200_000])
def test_what_is_too_deep_is_null_and_all_beside_it_stays(levels: int, quotes: str) -> None:
    """One level is the document's own."""
    said = json.dumps(quotes)
    deep = '{"x":' * (levels - 1) + said + "}" * (levels - 1)
    found = json_value(f'{{"before": {said}, "deep": {deep}, "after": [1, {said}]}}'.encode())
    assert (found["before"], found["after"]) == (quotes, [1, quotes])
    inner, depth = found["deep"], 1
    while isinstance(inner, dict):
        inner, depth = inner["x"], depth + 1
    assert (inner, depth) == ((quotes, levels) if levels <= MOST_LEVELS else (None, MOST_LEVELS))


def test_numbers_that_python_does_not_read_are_floats() -> None:
    assert json_value(b"[%s, -%s, 1e999, 18446744073709551616]" % (b"9" * 5_000, b"9" * 5_000)) == [
        float("inf"),
        float("-inf"),
        float("inf"),
        2**64,
    ]


@pytest.mark.parametrize(
    "data",
    [b'{"x": ' * 300_000, b"[" * 300 + b'"' + b'\\"' * 500_000, b'"' * 1_000_001, b"[" * 300 + b'"\\' * 300_000],
    ids=["open", "escapes", "quotes", "backslashes"],
)
def test_a_megabyte_that_is_no_json_is_refused_soon(data: bytes) -> None:
    """It takes some tenths of a second; what grows faster than its input would take minutes."""
    began = time.thread_time()
    with pytest.raises(InvalidInput, match="expected JSON"):
        json_value(data)
    assert time.thread_time() - began < 20


@given(st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4))
def test_texts_in_protobuf_are_read_as_json_shows_them(note: bytes, value: bytes) -> None:
    pod = kubernetes_pb2.Pod(metadata={"name": "p", "annotations": {"note": "NOTE", "KEY0": "x"}})
    pod.spec.tolerations.add(key="VALU")
    pod.metadata.managed_fields.append(b"\xff")  # bytes are bytes
    data = pod.SerializeToString().replace(b"NOTE", note).replace(b"VALU", value)
    found = parse(kubernetes_pb2.Pod, data)
    assert found.metadata.annotations["note"] == note.decode(errors="replace")
    assert found.spec.tolerations[0].key == value.decode(errors="replace")
    assert (found.metadata.name, list(found.metadata.managed_fields)) == ("p", [b"\xff"])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"a\uDFFFb"', "a\ufffdb"),
        (r'"\ud83d\ude00"', "\N{GRINNING FACE}"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd\N{GRINNING FACE}"),
        (r'"\\ud800"', r"\ud800"),
        (r'{"\ud800": "\ud7ff"}', {"\ufffd": "\ud7ff"}),
    ],
)
def test_half_a_character_is_read_as_go_reads_it(written: str, read: object) -> None:
    found = json_value(written.encode())
    assert found == read
    str(found).encode()  # what is read can be written


def test_half_a_character_that_is_not_escaped_is_no_utf_8() -> None:
    with pytest.raises(InvalidInput):
        json_value(b'"\xed\xa0\x80"')
