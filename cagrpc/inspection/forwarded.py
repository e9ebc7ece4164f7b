"""A server in a cluster, reached with nothing but a kubeconfig: kubectl forwards a port to its Service and asks for a
token of the account that reads its pages, so every way to log in that kubectl knows is good here too. Why not through
the API server's proxy: docs/decisions/0031."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

from cagrpc.errors import InvalidInput, Unavailable
from cagrpc.inspection.client import ServerAddress

NAMESPACE, ACCOUNT = "cagrpc", "reader"
"""Where deploy/ installs the server, and whose token is asked for."""
_SERVICE, _PORT = "service/cagrpc", 8088
_ANSWER_SECONDS = 60.0
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> ")


@dataclass(frozen=True, slots=True)
class ServerInCluster:
    """Which server, and as whom its pages are read."""

    kubeconfig: Path | None = None
    """None for kubectl's own choice."""
    context: str = ""
    namespace: str = NAMESPACE
    account: str = ACCOUNT
    """A ServiceAccount of the namespace that is bound to the ClusterRole cagrpc-reader."""
    authority: Path | None = None
    """Whose certificate the server must have. Without one the certificate is not checked: the API server and the
    kubelet vouch for the pod that the port leads to."""
    token: str = ""
    """Instead of one of the account."""

    def kubectl(self, *arguments: str) -> list[str]:
        """Return a command of kubectl in the server's namespace. Raises InvalidInput without kubectl."""
        program = shutil.which("kubectl")
        if program is None:
            raise InvalidInput("kubectl is not in PATH, and a server in a cluster is reached by it; or give --http")
        flags = [f"--namespace={self.namespace}"]
        flags += [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig is not None else []
        flags += [f"--context={self.context}"] if self.context else []
        return [program, *arguments, *flags]


@contextmanager
def forwarded(server: ServerInCluster) -> Iterator[ServerAddress]:
    """Where the server's HTTP side is, as long as the context lasts. Raises Unavailable with kubectl's words where it
    is not reached, or its account gets no token."""
    token = server.token or _token(server)
    command = server.kubectl("port-forward", _SERVICE, f":{_PORT}", "--address=127.0.0.1", "--pod-running-timeout=10s")
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)  # noqa: S603 - kubectl
        try:
            address = f"https://127.0.0.1:{_port(process, errors)}"
            yield ServerAddress(address, server.authority, token, tunnelled=True)
        finally:
            process.kill()
            process.wait()


def _token(server: ServerInCluster) -> str:
    command = server.kubectl("create", "token", server.account, "--duration=1h")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"kubectl create token: no answer within {_ANSWER_SECONDS:g} s") from error
    if done.returncode != 0:
        raise Unavailable(
            f"no token of the ServiceAccount {server.namespace}/{server.account}, which reads the server's pages:"
            f" {_last(done.stderr.splitlines())}"
        )
    return done.stdout.strip()


def _port(process: subprocess.Popen[str], errors: IO[str]) -> int:
    """Return the local port that leads to the server."""
    assert process.stdout is not None
    lines: SimpleQueue[str] = SimpleQueue()
    Thread(target=_drain, args=(process.stdout, lines), daemon=True).start()
    try:
        said = lines.get(timeout=_ANSWER_SECONDS)
    except Empty:
        said = ""
    found = _FORWARDING.match(said)
    if found is None:
        process.kill()
        process.wait()
        errors.seek(0)
        why = _last(errors.read().splitlines()) or f"no answer within {_ANSWER_SECONDS:g} s"
        raise Unavailable(f"kubectl port-forward {_SERVICE}: {why}")
    return int(found[1])


def _drain(stream: IO[str], lines: SimpleQueue[str]) -> None:
    """Hand on the first line, and keep on reading: kubectl writes one for every connection, and would wait."""
    with stream:
        lines.put(stream.readline())
        for _ in stream:
            pass


def _last(lines: Sequence[str]) -> str:
    return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
