"""What is said of inputs that cannot be meant, and the exit code: 2 for wrong use, 1 for what does not answer."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cagrpc.cli.main import main

POD = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}"
PROVISIONERS = "[{name: p, node_groups: [{id: g, instance_type: m7i.large}]}]"
FILES = {
    "pods.yaml": POD,
    "provisioners.yaml": PROVISIONERS,
    "whole.yaml": f"provisioners: {PROVISIONERS}",
    "text": "hello",
    "text.jsonl.gz": "hello",
}


class _SomethingElse(BaseHTTPRequestHandler):
    """Answers as a web server that is not cagrpc."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: object) -> None:  # it is not to be said
        pass


@pytest.fixture(name="elsewhere")
def _elsewhere() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _SomethingElse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("plan --pods pods.yaml --provisioners provisioners.yaml --budget -1s", 2,
         "--budget: expected a value; one that begins with - is written --budget=VALUE; see `cagrpc plan --help`"),
        ("plan --pods pods.yaml --provisioners whole.yaml", 2,
         "whole.yaml[0]: is a whole configuration; expected NodePools, or its list of provisioners alone"),
        ("plan --kubeconfig text", 2, "kubeconfig text: expected a kubeconfig with clusters, users and contexts"),
        ("status --http localhost", 2, '--http: found "localhost", expected host:port'),
        ("serve --http-address 127.0.0.1:99999", 2, '--http-address: found "127.0.0.1:99999", expected a port'),
        ("replay text.jsonl.gz", 2, "text.jsonl.gz: is not a gzip file; expected what `cagrpc serve --record` writes"),
        ("replay call.jsonl.gz", 2, "call.jsonl.gz: line 1: is not a recorded RPC: method is missing"),
        ("status --http ELSEWHERE", 1, ": the answer is not JSON; is it the HTTP address of `cagrpc serve`?"),
        ("status --http 127.0.0.1:9", 1, ": Connection refused; is `cagrpc serve` running?"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_told_in_one_line(
    line: str,
    code: int,
    said: str,
    elsewhere: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "call.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    monkeypatch.chdir(tmp_path)
    try:
        found = main(line.replace("ELSEWHERE", elsewhere).split())
    except SystemExit as ended:  # argparse's own
        found = int(str(ended.code))
    assert found == code
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("cagrpc: ")
    assert said in told
