"""`serve --record`: what it writes is what `replay` reads, it holds no secrets, and it does not grow without end."""

from __future__ import annotations

import gzip
import logging
import os
from pathlib import Path

import pytest
from google.protobuf.message import Message

from cagrpc.api.autoscaler.expander import decode
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import InvalidInput, OutOfCapacity
from cagrpc.replay import recorder as recorder_module
from cagrpc.replay.recorder import Recorder
from cagrpc.replay.recording import read_recording
from cagrpc.services.grpc.status import CallContext
from cagrpc.services.grpc.template_groups import TemplateGroups
from tests.support.grpc_servers import asking, option
from tests.support.recordings import CONVERSATIONS, conversation
from tests.support.secrets import SECRET, pod_with_secrets

_INCREASE = pb.NodeGroupIncreaseSizeRequest(id="m7i", delta=2).SerializeToString()


def answer(data: bytes, _: CallContext) -> bytes:
    return data + b"!"


def refuse(_: bytes, call: CallContext) -> bytes:
    raise OutOfCapacity(f"{call.method}: none left")


def test_answers_and_errors_are_written_down(tmp_path: Path) -> None:
    now = iter([10.0, 10.0, 12.5])
    recorder = Recorder(tmp_path / "it.jsonl.gz", monotonic=lambda: next(now))
    methods = recorder.recorded({"Refresh": answer, "NodeGroupIncreaseSize": refuse})
    assert methods["Refresh"](b"", CallContext("Refresh")) == b"!"
    with pytest.raises(OutOfCapacity):
        methods["NodeGroupIncreaseSize"](_INCREASE, CallContext("NodeGroupIncreaseSize"))
    recorder.close()
    recorder.close()
    first, second = read_recording(str(tmp_path / "it.jsonl.gz"))
    assert (first.seconds, first.method, first.request, first.code, first.response) == (
        0.0, "Refresh", b"", "OK", b"!",
    )  # fmt: skip
    assert (second.seconds, second.request, second.code, second.response) == (2.5, _INCREASE, "RESOURCE_EXHAUSTED", b"")


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl.gz"
    path.write_bytes(b"mine")
    with pytest.raises(InvalidInput, match="File exists; name a new file in a writable directory"):
        Recorder(path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(InvalidInput, match=r"expected a name that ends in \.jsonl\.gz"):
        Recorder(tmp_path / "it.json")


def test_it_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Recorder(tmp_path / "it.jsonl.gz").close()
    finally:
        os.umask(before)
    assert (tmp_path / "it.jsonl.gz").stat().st_mode & 0o777 == 0o600


def _recorded(path: Path, method: str, *requests: bytes) -> bytes:
    recorder = Recorder(path)
    call = recorder.recorded({method: lambda *_: b""})[method]
    for request in requests:
        call(request, CallContext(method))
    recorder.close()
    return gzip.decompress(path.read_bytes())


_NODE = pb.ExternalGrpcNode(name="n", providerID="p", labels={"l": "v"}, annotations={"a": SECRET})


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("BestOptions", asking(option("a", 1, [pod_with_secrets()]))),
        ("PricingPodPrice", pb.PricingPodPriceRequest(pod_bytes=pod_with_secrets())),
        ("PricingPodPrice", pb.PricingPodPriceRequest(pod=pod_with_secrets())),
        ("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=_NODE)),
        ("PricingNodePrice", pb.PricingNodePriceRequest(node=_NODE)),
        ("NodeGroupDeleteNodes", pb.NodeGroupDeleteNodesRequest(id="a", nodes=[_NODE])),
    ],
)
def test_no_secret_is_written_down(tmp_path: Path, method: str, request_: Message) -> None:
    data = request_.SerializeToString()
    assert SECRET.encode() in data
    unknown = b"\xfa\x7f" + bytes([len(SECRET)]) + SECRET.encode()  # a field of a newer autoscaler
    text = _recorded(tmp_path / "it.jsonl.gz", method, data, data + unknown)
    calls = read_recording(str(tmp_path / "it.jsonl.gz"))
    assert len(calls) == 2
    assert calls[0].request == calls[1].request != b""
    assert not any(SECRET.encode() in each for each in (text, *(call.request for call in calls)))


def test_what_is_no_request_is_not_written_down(tmp_path: Path) -> None:
    assert _recorded(tmp_path / "it.jsonl.gz", "BestOptions", b"\xff" + SECRET.encode()) == b""


READ = TemplateGroups().read


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_recording_of_a_recording_asks_the_same(tmp_path: Path, name: str) -> None:
    """Of what an autoscaler sent once, everything is kept that matters for where pods fit."""
    recorder = Recorder(tmp_path / "it.jsonl.gz")
    sent = conversation(name)[:400]
    methods = recorder.recorded({rpc.method: lambda *_: b"" for rpc in sent})
    for rpc in sent:
        methods[rpc.method](rpc.request, CallContext(rpc.method))
    recorder.close()
    calls = read_recording(str(tmp_path / "it.jsonl.gz"))
    assert [call.method for call in calls] == [rpc.method for rpc in sent]
    for call, rpc in zip(calls, sent, strict=True):
        if rpc.method == "BestOptions":
            kept, asked = (decode(each.request, lambda: False) for each in (call, rpc))
            assert kept.options == asked.options
            for group in {option.node_group for option in asked.options} & asked.templates.keys():
                assert READ(group, kept.templates[group]) == READ(group, asked.templates[group])


def test_it_ends_at_its_largest_size_with_one_warning_and_calls_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(recorder_module, "MOST_BYTES", 200_000)
    path = tmp_path / "it.jsonl.gz"
    recorder = Recorder(path)
    increase = recorder.recorded({"NodeGroupIncreaseSize": lambda *_: b"done"})["NodeGroupIncreaseSize"]
    for _ in range(100):
        request = pb.NodeGroupIncreaseSizeRequest(id=os.urandom(10_000).hex(), delta=1).SerializeToString()
        assert increase(request, CallContext("NodeGroupIncreaseSize")) == b"done"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "recording stopped: it would have more than 200000 bytes" in caplog.text
    recorder.close()
    assert 100_000 < path.stat().st_size < 200_000
    assert 5 < len(read_recording(str(path))) < 100


def test_a_full_disk_ends_the_recording_and_not_the_call(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "it.jsonl.gz")
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), recorder._raw.fileno())
    increase = recorder.recorded({"NodeGroupIncreaseSize": lambda *_: b"done"})["NodeGroupIncreaseSize"]
    for _ in range(100):
        request = pb.NodeGroupIncreaseSizeRequest(id=os.urandom(10_000).hex(), delta=1).SerializeToString()
        assert increase(request, CallContext("NodeGroupIncreaseSize")) == b"done"
    recorder.close()
    assert caplog.text.count("recording stopped: No space left on device") == 1
