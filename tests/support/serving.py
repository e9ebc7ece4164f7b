"""Commands as real processes over real sockets, on free ports, with state below tmp_path."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import grpc
import pytest
import yaml

from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.config.load import load_settings
from cagrpc.config.schema.listen import Address
from cagrpc.config.settings import Settings
from cagrpc.controllers.settings import (
    AnswerRules,
    AutoscalerConfigMapSettings,
    ClusterSettings,
    ConsolidationSettings,
    Drive,
    ExpanderMode,
    JournalKind,
    KueueSettings,
    RequestSettings,
)
from cagrpc.controllers.slack.model import SlackSettings
from cagrpc.replay.recording import PROVIDER
from cagrpc.server.server import Server
from tests.support.forked import ForkedProcess
from tests.support.recordings import recorded
from tests.support.waiting import AMPLE_SECONDS

FAST: Mapping[str, Any] = {"boot": "0.1s", "delete": "0.1s", "fail_after": "0.1s"}


def cagrpc(*arguments: object, timeout: float = AMPLE_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    with TemporaryDirectory() as directory:
        output, errors = (Path(directory) / name for name in ("output", "errors"))
        process = ForkedProcess(["cagrpc.cli", *map(str, arguments)], output, errors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, code, output.read_text(), errors.read_text())


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "cagrpc.cli", *map(str, arguments)]


def configuration(
    path: Path,
    provisioners: list[dict[str, Any]],
    behaviours: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> Path:
    """Write a configuration file in which every group behaves fast unless configured otherwise."""
    simulated = {key: {**FAST, **value} for key, value in {"*": {}, **(behaviours or {})}.items()}
    path.write_text(yaml.safe_dump({"backend": {"simulated": simulated}, "provisioners": provisioners, **more}))
    return path


SMALL: Mapping[str, Any] = {
    "id": "small",
    "allocatable": {"cpu": "2", "memory": "8Gi", "pods": 29},
    "price_usd_per_hour": 0.1,
}


def settings_of(directory: Path, behaviours: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
    """Return settings with one small node group, no cluster and no TLS, on free ports, with state below `directory`."""
    groups = [{"name": "one", "node_groups": [dict(SMALL)]}]
    written = configuration(directory / "cagrpc.yaml", groups, behaviours)
    free = Address("127.0.0.1", 0)
    settings = replace(load_settings(written), provider=free, expander=free, http=free, tls=None)
    return replace(settings, state_directory=directory / "state")


def kubeconfig_of(directory: Path, server: str) -> Path:
    """Write a kubeconfig for an API server without credentials."""
    path = directory / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "it",
                "clusters": [{"name": "it", "cluster": {"server": server}}],
                "users": [{"name": "it", "user": {}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            }
        )
    )
    return path


def settings_of_everything(directory: Path, api_server: str) -> Settings:
    """Return `settings_of` with a cluster and every controller; the cluster has a cluster-autoscaler of its own
    too, which decides."""
    settings = settings_of(directory)
    backend: Any = settings.backend
    return replace(
        settings,
        backend=replace(backend, settings=replace(backend.settings, nodes=True)),
        drive=Drive.PLAN,
        cluster=ClusterSettings(kubeconfig_of(directory, api_server), journal=JournalKind.SQLITE),
        requests=RequestSettings(),
        kueue=KueueSettings(),
        slack=SlackSettings(),
        consolidation=ConsolidationSettings(),
        config_maps=AutoscalerConfigMapSettings(),
        answers=AnswerRules(ExpanderMode.SHADOW),
    )


def ask(server: Server, path: str) -> tuple[int, str]:
    """Return status and text of a page of a server in this process."""
    try:
        with urllib.request.urlopen(f"http://{server.endpoints.http}{path}", timeout=AMPLE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def beginning(recording: str, lines: int, path: Path) -> Path:
    """Write the first lines of a recording as one of its own."""
    with gzip.open(recorded(f"{recording}.jsonl.gz")) as whole:
        path.write_bytes(gzip.compress(b"".join(islice(whole, lines))))
    return path


def recorded_groups(recording: str, weights: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the groups that the recorded provider served, each in a provisioner of its own weight."""
    file = str(recorded(f"{recording}.groups.json"))
    return [
        {"name": f"p-{index}", "weight": weight, "node_groups": [{"file": file, "ids": [group]}]}
        for index, (group, weight) in enumerate(weights.items())
    ]


@dataclass
class Serving:
    """A running `cagrpc serve` process."""

    process: ForkedProcess | subprocess.Popen[bytes]
    state: Path
    output: Path
    endpoints: dict[str, Any] = field(default_factory=dict)

    @property
    def certificates(self) -> Path:
        return self.state / "certs"

    def get(self, path: str) -> Any:
        """Of a list all pages."""
        with urllib.request.urlopen(f"http://{self.endpoints['http']}{path}", timeout=AMPLE_SECONDS) as answer:
            text, following = answer.read().decode(), answer.headers["Link"]
        if answer.headers["Content-Type"] != "application/json":
            return text
        older = self.get(following[1 : following.index(">")]) if following else []
        return older + json.loads(text) if older else json.loads(text)

    def provider(self) -> ProviderClient:
        return ProviderClient(self.endpoints["provider"], self.certificates)

    def replay(self, recording: Path, *more: object) -> subprocess.CompletedProcess[str]:
        addresses = ("--provider", self.endpoints["provider"], "--expander", self.endpoints["expander"])
        return cagrpc("replay", recording, *addresses, "--certs", self.certificates, *more)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(AMPLE_SECONDS)

    def log(self) -> str:
        return self.output.with_suffix(".err").read_text(errors="replace")


Start = Callable[[Sequence[str], Path, Path], ForkedProcess | subprocess.Popen[bytes]]
"""Starts a module with its arguments; what it prints is appended to the two files."""


def started_process(command: Sequence[str], output: Path, errors: Path) -> subprocess.Popen[bytes]:
    """`python -m` with this command; what it prints is appended to the two files."""
    with output.open("ab") as out, errors.open("ab") as err:
        return subprocess.Popen([sys.executable, "-m", *command], stdout=out, stderr=err)


def serve(
    state: Path,
    *arguments: object,
    program: Sequence[str] = ("cagrpc.cli",),
    patience_seconds: float = AMPLE_SECONDS,
    start: Start = ForkedProcess,
) -> Serving:
    """Start a server and wait until it reports its address. `program` is another module than `cagrpc.cli`, with its
    arguments before `serve`. Where time or memory is measured it is no `ForkedProcess`, but a `started_process`, as
    people start it."""
    output = state.parent / f"{state.name}.out"
    endpoints = state / "endpoints.json"
    flags = ("serve", "--ephemeral-ports", "--state-dir", state, *arguments)
    process = start([*program, *map(str, flags)], output, output.with_suffix(".err"))
    serving = Serving(process, state, output)
    give_up = time.monotonic() + patience_seconds
    while not serving.endpoints:
        if process.poll() is not None or time.monotonic() > give_up:
            process.kill()
            raise AssertionError(f"it does not serve (exit code {process.poll()}):\n{serving.log()}")
        time.sleep(0.02)
        if endpoints.exists() and (text := endpoints.read_text()).endswith("\n"):
            found = json.loads(text)
            serving.endpoints = found if found["pid"] == process.pid else {}  # else left by a killed one
    return serving


class ProviderClient:
    """A client of the provider as CA is one: mTLS, messages in, messages out."""

    def __init__(self, address: str, certificates: Path, client: str = "client") -> None:
        authority, key, certificate = (
            (certificates / name).read_bytes() for name in ("ca.crt", f"{client}.key", f"{client}.crt")
        )
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        self._channel = grpc.secure_channel(address, credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def _call(self, method: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(f"/{PROVIDER.full_name}/{method}", None, response.FromString)
        return call(request.SerializeToString(), timeout=AMPLE_SECONDS)

    def node_groups(self) -> list[str]:
        answer = self._call("NodeGroups", pb.NodeGroupsRequest(), pb.NodeGroupsResponse)
        return [group.id for group in answer.nodeGroups]

    def increase(self, node_group: str, delta: int) -> None:
        request = pb.NodeGroupIncreaseSizeRequest(id=node_group, delta=delta)
        self._call("NodeGroupIncreaseSize", request, pb.NodeGroupIncreaseSizeResponse)

    def delete(self, node_group: str, *ids: str) -> None:
        nodes = [pb.ExternalGrpcNode(name=each, providerID=each) for each in ids]
        request = pb.NodeGroupDeleteNodesRequest(id=node_group, nodes=nodes)
        self._call("NodeGroupDeleteNodes", request, pb.NodeGroupDeleteNodesResponse)

    def target(self, node_group: str) -> int:
        request = pb.NodeGroupTargetSizeRequest(id=node_group)
        answer = self._call("NodeGroupTargetSize", request, pb.NodeGroupTargetSizeResponse)
        return int(answer.targetSize)

    def instances(self, node_group: str) -> dict[str, int]:
        """Id -> state."""
        answer = self._call("NodeGroupNodes", pb.NodeGroupNodesRequest(id=node_group), pb.NodeGroupNodesResponse)
        return {each.id: each.status.instanceState for each in answer.instances}

    def failed(self, node_group: str) -> list[str]:
        """Return the ids of instances that have an error, which the autoscaler deletes."""
        answer = self._call("NodeGroupNodes", pb.NodeGroupNodesRequest(id=node_group), pb.NodeGroupNodesResponse)
        return [each.id for each in answer.instances if each.status.errorInfo.errorCode]

    def wait_for_running(self, node_group: str, count: int) -> list[str]:
        give_up = time.monotonic() + AMPLE_SECONDS
        while True:
            states = self.instances(node_group)
            running = [i for i, state in states.items() if state == pb.InstanceStatus.instanceRunning]
            if len(running) == count:
                return running
            assert time.monotonic() < give_up, states
            time.sleep(0.05)


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """What `make run` serves, for tests that leave nothing behind."""
    serving = serve(tmp_path_factory.mktemp("demonstration") / "state")
    yield serving
    assert serving.stop() == 0, serving.log()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts servers of one test: `started(*arguments)` serves from tmp_path/state."""
    servers: list[Serving] = []

    def start(*arguments: object, state: str = "state") -> Serving:
        servers.append(serve(tmp_path / state, *arguments))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
