"""`serve --record`: what it writes is what `replay` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.cli.recorder import Recorder
from cagrpc.cli.recording import read_recording
from cagrpc.errors import InvalidInput, OutOfCapacity
from cagrpc.services.status import Call


def refuse(data: bytes, call: Call) -> bytes:
    raise OutOfCapacity(f"{call.method}: no {data.decode()} left")


def test_answers_and_errors_are_written_down(tmp_path: Path) -> None:
    now = iter([10.0, 10.0, 12.5])
    recorder = Recorder(tmp_path / "it.jsonl.gz", monotonic=lambda: next(now))
    methods = recorder.recorded({"Refresh": lambda data, _: data + b"!", "NodeGroupIncreaseSize": refuse})
    assert methods["Refresh"](b"\x00\xff", Call("Refresh")) == b"\x00\xff!"
    with pytest.raises(OutOfCapacity):
        methods["NodeGroupIncreaseSize"](b"m7i", Call("NodeGroupIncreaseSize"))
    recorder.close()
    recorder.close()
    first, second = read_recording(str(tmp_path / "it.jsonl.gz"))
    assert (first.seconds, first.method, first.request, first.code, first.response) == (
        0.0, "Refresh", b"\x00\xff", "OK", b"\x00\xff!",
    )  # fmt: skip
    assert (second.seconds, second.code, second.response) == (2.5, "RESOURCE_EXHAUSTED", b"")


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl.gz"
    path.write_bytes(b"mine")
    with pytest.raises(InvalidInput, match="File exists; give a file that can be made"):
        Recorder(path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(InvalidInput, match=r"expected a name that ends in \.jsonl\.gz"):
        Recorder(tmp_path / "it.json")
