"""The campaign at the listeners: a short one finds nothing, on both fronts; servers that answer, or end, as they must
not are found, and so are decoders."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from bench.faults import decoding, listeners
from bench.faults.messages import Hostile, calls, pages
from cagrpc.server.certificates import ensure_certificates
from tests.api.decoders.registry import Decoder
from tests.support.grpc_servers import FRONTS, fronted
from tests.support.serving import Serving

CALLS, MESSAGES = 300, 1_000
LAST_WORDS = """
#100000	DONE   cov: 1 ft: 1 corp: 1/1b exec/s: 100 rss: 512Mb
stat::number_of_executed_units: 100000
stat::new_units_added:          321
stat::peak_rss_mb:              512
"""


@pytest.mark.parametrize("front", FRONTS)
def test_a_short_one_finds_nothing(front: str) -> None:
    with fronted(front):
        result = listeners.over_sockets(front, 1, CALLS)
    assert not result.violations
    answers = {name.rpartition(" ")[2]: count for name, count in result.told.items() if "calls answered" in name}
    assert sum(answers.values()) == CALLS
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= set(answers)
    assert result.most[f"{front}: MiB in the end"]


def test_the_same_seed_makes_the_same_messages() -> None:
    first, second = ([made(hostile) for _ in range(200)] for hostile in (Hostile(Random(7)), Hostile(Random(7))))
    assert first == second
    assert len(set(first)) > 190


def made(hostile: Hostile) -> object:
    return hostile.call(), hostile.request(), hostile.connection()


def test_what_the_fuzzer_says_is_read() -> None:
    result = listeners.told_by_fuzzer(LAST_WORDS, 0)
    assert result.told == {
        listeners.FUZZED: 100_000,
        "inputs that reached different code": 321,
    }
    assert result.most == {"fuzzer: most memory, MiB": 512}
    assert not result.violations
    assert listeners.told_by_fuzzer(f"{LAST_WORDS}== ERROR: TimeoutError: pods took 3.1 s", 77).violations


def test_a_few_messages_to_decoders_find_nothing() -> None:
    result = decoding.drawn("1", MESSAGES)
    assert not result.violations
    assert MESSAGES // 10 < result.told["refused by decoders"] < result.told[decoding.DRAWN] == MESSAGES
    assert decoding.drawn("1", MESSAGES).told["refused by decoders"] == result.told["refused by decoders"]


# ---- what must not be


def test_decoders_that_fail_are_slow_or_grow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []

    def read(of: bytes) -> None:
        kept.append(b"x" * 2**20)
        if len(kept) % 100 == 0:
            raise KeyError(of)

    of = [Decoder("d", read, (b"seed",))]
    found = decoding.drawn("1", 300, of=of).violations
    assert [each.partition(":")[0] for each in found] == ["d", "d", "d", found[-1]]
    assert "KeyError" in found[0]
    assert "grew from" in found[-1]
    monkeypatch.setattr(decoding, "MOST_SECONDS", 0.0)
    assert "took" in decoding.drawn("1", 1, of=of).violations[0]


class Failing(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Every call meets an exception that nobody thought of."""

    def service(self, _: object) -> Any:
        def fail(_request: bytes, _context: object) -> bytes:
            raise ZeroDivisionError

        return grpc.unary_unary_rpc_method_handler(fail)


class FailingPages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(500)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def failing(directory: Path) -> Iterator[Serving]:
    """A server whose listeners are all broken; its process only waits to be ended."""
    certificates = directory / "certs"
    ensure_certificates(certificates)
    key, certificate, authority = ((certificates / n).read_bytes() for n in ("server.key", "server.crt", "ca.crt"))
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Failing()])
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    server.start()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with ThreadingHTTPServer(("127.0.0.1", 0), FailingPages) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        endpoints = {"provider": address, "expander": address, "http": f"127.0.0.1:{http.server_port}"}
        yield Serving(process, directory, directory / "out", endpoints)
        http.shutdown()
    process.communicate()
    server.stop(None).wait()


def test_calls_and_pages_that_fail_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hostile = Hostile(Random(1))
    with caplog.at_level("CRITICAL", "grpc"), failing(tmp_path) as serving:
        assert calls(serving, hostile, 20) == {"calls answered with UNKNOWN": 20}
        assert len(hostile.wrong) == 20
        pages(serving, hostile, 40)
    assert any("HTTP 500" in each for each in hostile.wrong)


def test_a_server_that_ended_is_found(tmp_path: Path) -> None:
    (tmp_path / "out.err").write_text("Segmentation fault\n")
    with failing(tmp_path) as serving:
        watch = listeners.Watch(serving)
        watch.begin()
        serving.process.kill()
        serving.process.wait()
        assert [each for each in watch.end() if each.startswith("the server has ended: Segmentation")]
    with failing(tmp_path) as serving:
        watch = listeners.Watch(serving)
        watch.begin()
        watch.first_mib -= 2 * decoding.MOST_GROWTH_MIB
        assert next(watch.end()).startswith("it grew from")
