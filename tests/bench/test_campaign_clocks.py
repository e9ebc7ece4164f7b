"""Processes of a campaign whose clock is set: the program sees it, and gRPC goes on as on any machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.support.controlplane.stepping import leave_grpc_alone, stepping
leave_grpc_alone()
time.time = stepping(Path(sys.argv[1]), time.time)
import grpc

def answer(_, context):
    return str(round(context.time_remaining())).encode()

handlers = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
server = grpc.server(ThreadPoolExecutor(1), [grpc.method_handlers_generic_handler("S", handlers)])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    remains = channel.unary_unary("/S/Ask")(b"", timeout=60)
server.stop(None).wait()
print(time.time(), remains.decode())
"""


def test_a_clock_that_is_ahead_is_seen_and_calls_have_their_deadlines(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("100000.0")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, clock], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    now, remains = done.stdout.split()
    assert float(now) > clock.stat().st_mtime + 90_000
    assert 30 <= int(remains) <= 60
