"""`cagrpc serve` as a process: what it says, how it stops, what survives, and every way in which it cannot start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
import yaml

from cagrpc.cli.main import main
from cagrpc.server.certificates import ensure_certificates
from tests.support.serving import ProviderClient, Serving, beginning, cagrpc, configuration

Started = Callable[..., Serving]
GROUP = {"id": "small", "allocatable": {"cpu": "2", "memory": "8Gi", "pods": 29}, "price_usd_per_hour": 0.1}
ONE_GROUP = [{"name": "one", "node_groups": [GROUP]}]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return configuration(tmp_path / "cagrpc.yaml", ONE_GROUP)


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    """The address of a port that somebody else listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_it_says_how_to_connect_an_autoscaler(demonstration: Serving) -> None:
    said = demonstration.output.read_text()
    state = demonstration.state.resolve()
    for flag in (
        "--cloud-provider=externalgrpc",
        f"--cloud-config={state}/cloud-config.yaml",
        "--expander=grpc\n",
        "--expander=grpc,least-waste and the two --grpc-expander flags",
        f"--grpc-expander-url={demonstration.endpoints['expander']}",
        f"--grpc-expander-cert={state}/certs/ca.crt",
        "--balance-similar-node-groups=false",
    ):
        assert flag in said
    cloud_config = yaml.safe_load((state / "cloud-config.yaml").read_text())
    assert cloud_config.pop("address") == demonstration.endpoints["provider"]
    assert {name: Path(path).name for name, path in cloud_config.items()} == {
        "cert": "client.crt",
        "key": "client.key",
        "cacert": "ca.crt",
    }
    assert all(Path(path).is_file() for path in cloud_config.values())


def test_the_http_side(demonstration: Serving) -> None:
    assert demonstration.get("/healthz") == "ok\n"
    assert demonstration.get("/readyz") == "ok\n"
    assert "cagrpc_rpc" in demonstration.get("/metrics")
    assert demonstration.get("/simulation")["*"]["boot"] == "1s"


def test_what_it_keeps_is_its_owners_alone(demonstration: Serving) -> None:
    kept = ("certs/ca.key", "certs/server.key", "certs/client.key", "journal.sqlite", "journal.sqlite-wal")
    for name in (*kept, "simulated.sqlite"):
        assert stat.S_IMODE((demonstration.state / name).stat().st_mode) == 0o600


def test_sigterm_stops_it_and_a_restart_keeps_the_fleet(written: Path, started: Started) -> None:
    first = started("--config", written)
    with first.provider() as provider:
        provider.increase("small", 3)
        before = provider.wait_for_running("small", 3)
    assert first.stop(signal.SIGTERM) == 0
    assert not (first.state / "endpoints.json").exists()
    second = started("--config", written)
    with second.provider() as provider:
        assert provider.target("small") == 3
        assert list(provider.instances("small")) == before
    assert "Traceback" not in first.log()


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path, started: Started) -> None:
    slow = configuration(tmp_path / "c.yaml", ONE_GROUP, {"*": {"boot": "1.5s"}})
    first = started("--config", slow)
    with first.provider() as provider:
        provider.increase("small", 2)
    first.process.kill()
    assert first.process.wait() == -signal.SIGKILL
    second = started("--config", slow)
    with second.provider() as provider:
        assert len(provider.wait_for_running("small", 2)) == provider.target("small") == 2


def test_sigint_is_said_in_the_exit_code(written: Path, started: Started) -> None:
    assert started("--config", written).stop(signal.SIGINT) == 130


def test_sigterm_during_the_replay(tmp_path: Path, started: Started) -> None:
    groups = [{**GROUP, "id": name} for name in ("m7i.large", "m7i.4xlarge", "m7g.xlarge")]
    hanging = configuration(tmp_path / "c.yaml", [{"name": "p", "node_groups": groups}], {"*": {"hang": True}})
    server = started("--config", hanging, "--replay", "three-deployments")
    assert server.stop(signal.SIGTERM) == 0


def test_once_ends_with_the_replay(tmp_path: Path) -> None:
    """What `make run ONCE=1` does, with less to replay."""
    recording = beginning("three-deployments", 150, tmp_path / "one.jsonl.gz")
    done = cagrpc("serve", "--ephemeral-ports", "--state-dir", tmp_path / "state", "--once", "--replay", recording)
    assert done.returncode == 0, done.stderr
    assert "--cloud-provider=externalgrpc" in done.stdout
    assert "14 running" in done.stdout
    assert "every request was answered as recorded; instances left: none" in done.stdout


def test_once_fails_with_the_replay(tmp_path: Path) -> None:
    groups = [{**GROUP, "id": name} for name in ("m6i.large", "m5.large", "m7i.large")]
    written = configuration(tmp_path / "c.yaml", [{"name": "p", "node_groups": groups}])
    recording = beginning("stockout", 60, tmp_path / "one.jsonl.gz")
    arguments = ("serve", "--config", written, "--ephemeral-ports", "--state-dir", tmp_path / "s", "--once", "--replay")
    done = cagrpc(*arguments, recording)
    assert done.returncode == 1  # nothing is out of stock here
    assert "answered OK where RESOURCE_EXHAUSTED was recorded" in done.stdout


def test_logs_are_json_lines_without_a_terminal(written: Path, started: Started) -> None:
    server = started("--config", written)
    with server.provider() as provider:
        provider.increase("small", 1)
        provider.wait_for_running("small", 1)
    server.stop()
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert any("small+1" in line["message"] and line["level"] == "info" for line in lines)


def test_a_client_certificate_of_another_authority_is_refused(
    demonstration: Serving, tmp_path: Path, started: Started
) -> None:
    ensure_certificates(tmp_path)
    shutil.copy(demonstration.certificates / "ca.crt", tmp_path / "ca.crt")  # it trusts the server, not vice versa
    with (
        ProviderClient(demonstration.endpoints["provider"], tmp_path) as stranger,
        pytest.raises(grpc.RpcError) as refused,
    ):
        stranger.node_groups()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    with demonstration.provider() as provider:
        assert "m7i.large" in provider.node_groups()


def test_replay_says_what_is_wrong_when_the_certificates_are(
    demonstration: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cagrpc.replay.sockets.CONNECT_SECONDS", 0.1)
    ensure_certificates(tmp_path)
    addresses = ("--provider", demonstration.endpoints["provider"], "--expander", demonstration.endpoints["expander"])
    assert main(["replay", "three-deployments", *addresses, "--certs", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("cagrpc: no provider answers at 127.0.0.1:")
    assert "does not accept these certificates" in said


def test_a_second_server_on_the_same_state_directory_is_refused(demonstration: Serving) -> None:
    done = cagrpc("serve", "--ephemeral-ports", "--state-dir", demonstration.state)
    assert done.returncode == 2
    assert "journal.sqlite" in done.stderr
    assert "Traceback" not in done.stderr
    assert demonstration.get("/readyz") == "ok\n"


@pytest.mark.parametrize("which", ["provider", "expander", "http"])
def test_a_port_that_is_taken(which: str, taken: str, written: Path, tmp_path: Path) -> None:
    flags = ("--ephemeral-ports", "--state-dir", tmp_path / "state", f"--{which}-address", taken)
    done = cagrpc("serve", "--config", written, *flags)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("{"))  # the others are the log
    assert line.startswith(f"cagrpc: cannot listen on {taken}")


BAD_CONFIGURATIONS = {
    "two errors at once": ("provisioners: []\nshown_groups: many\n", ["provisioners", "shown_groups"]),
    "not YAML": ("provisioners: [\n", ["c.yaml:2:1: is not YAML"]),
    "no mapping": ("- 1\n", []),
    "an unknown field": ("provisionners: []\n", ["provisionners"]),
    "a behaviour that does not exist": (
        "backend: {simulated: {'*': {boots: 1}}}\nprovisioners: [{name: a, node_groups: [{id: g, instance_type: a1}]}]",
        ['backend.simulated["*"]', "boots: unknown field"],
    ),
}


@pytest.mark.parametrize(("text", "places"), BAD_CONFIGURATIONS.values(), ids=BAD_CONFIGURATIONS)
def test_a_bad_configuration(text: str, places: list[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    done = cagrpc("serve", "--config", tmp_path / "c.yaml", "--ephemeral-ports", "--state-dir", tmp_path / "state")
    assert done.returncode == 2
    problems = [line for line in done.stderr.splitlines() if line.startswith("cagrpc: ")]
    assert problems
    for place in places:
        assert any(place in problem for problem in problems), done.stderr
    assert "Traceback" not in done.stderr


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    done = cagrpc("serve", "--config", tmp_path / "none.yaml")
    assert done.returncode == 2
    assert "none.yaml" in done.stderr


def _no_key(directory: Path) -> None:
    (directory / "server.key").unlink()


def _not_pem(directory: Path) -> None:
    (directory / "server.crt").write_text("certificate")


def _other_key(directory: Path) -> None:
    shutil.copy(directory / "client.key", directory / "server.key")


def _directory_instead(directory: Path) -> None:
    (directory / "ca.crt").unlink()
    (directory / "ca.crt").mkdir()


BAD_CERTIFICATES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing key": (_no_key, "server.key: No such file"),
    "not PEM": (_not_pem, "server.crt is not a PEM certificate"),
    "another's key": (_other_key, "server.key is not the key of"),
    "a directory": (_directory_instead, "ca.crt: Is a directory"),
}


@pytest.mark.parametrize(("damage", "message"), BAD_CERTIFICATES.values(), ids=BAD_CERTIFICATES)
def test_unreadable_certificates(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    directory = tmp_path / "own"
    ensure_certificates(directory)
    damage(directory)
    written = configuration(tmp_path / "c.yaml", ONE_GROUP, tls={"directory": str(directory)})
    done = cagrpc("serve", "--config", written, "--ephemeral-ports", "--state-dir", tmp_path / "state")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_state_directory_that_cannot_be_made(tmp_path: Path, written: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cagrpc("serve", "--config", written, "--ephemeral-ports", "--state-dir", tmp_path / "file" / "state")
    assert done.returncode == 2
    assert os.fspath(tmp_path / "file") in done.stderr


def test_once_without_a_replay() -> None:
    done = cagrpc("serve", "--once")
    assert done.returncode == 2
    assert "--replay" in done.stderr


def test_a_booking_without_provisioning_requests(written: Path, tmp_path: Path) -> None:
    done = cagrpc("serve", "--config", written, "--state-dir", tmp_path / "state", "--booking", "5m")
    assert done.returncode == 2
    assert done.stderr.startswith("cagrpc: --booking: the configuration serves no ProvisioningRequests")
