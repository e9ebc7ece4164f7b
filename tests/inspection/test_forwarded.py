"""A server in a cluster, reached by kubectl: here what it is asked, and what becomes of its refusals. The whole way is
gone in tests/controlplane/test_kubectl.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.cli.main import main

FORWARDING = 'echo "Forwarding from 127.0.0.1:1 -> 8088"; sleep 600'


@pytest.fixture(name="path")
def _path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of programs beside those of the system."""
    for name in ("CAGRPC_HTTP", "CAGRPC_HTTP_CA", "CAGRPC_TOKEN", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "sleep"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    return programs


def kubectl(path: Path, token: str, forward: str = "exit 1") -> Path:
    """A kubectl that does these, and writes down what it was asked."""
    asked = path / "asked"
    program = path / "kubectl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\ncase $1 in create) {token} ;; *) {forward} ;; esac\n')
    program.chmod(0o755)
    return asked


def test_kubectl_is_needed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"], kubectl=True) == 2
    assert "kubectl is not in PATH" in capsys.readouterr().err


def test_what_kubectl_says_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubectl(path, "echo 'error: serviceaccounts \"reader\" not found' >&2; exit 1")
    assert main(["status"], kubectl=True) == 1
    said = "no token of the ServiceAccount cagrpc/reader, which reads the server's pages: serviceaccounts"
    assert said in capsys.readouterr().err
    kubectl(path, "echo secret", "echo 'error: services \"cagrpc\" not found' >&2; exit 1")
    assert main(["slack"], kubectl=True) == 1
    assert 'kubectl port-forward service/cagrpc: services "cagrpc" not found' in capsys.readouterr().err


@pytest.mark.parametrize("plugin", [False, True])
def test_kubectl_is_given_the_cluster(path: Path, plugin: bool, capsys: pytest.CaptureFixture[str]) -> None:
    asked = kubectl(path, "echo secret", FORWARDING)
    flags = ["--kubeconfig", "it.yaml", "--context", "prod", "--server-namespace", "fleet", "--service-account", "eye"]
    assert main(["explain", "--last", *flags], kubectl=plugin) == 1
    assert "https://127.0.0.1:1/status" in capsys.readouterr().err
    where = "--namespace=fleet --kubeconfig=it.yaml --context=prod"
    assert asked.read_text().splitlines() == [
        f"create token eye --duration=1h {where}",
        f"port-forward service/cagrpc :8088 --address=127.0.0.1 --pod-running-timeout=10s {where}",
    ]


def test_an_address_is_asked_directly(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = kubectl(path, "echo secret", FORWARDING)
    assert main(["status", "--http", "127.0.0.1:1"], kubectl=True) == 1
    assert main(["status", "--http", "127.0.0.1:1", "--kubeconfig", "it.yaml"]) == 1
    assert not asked.exists()
    assert "http://127.0.0.1:1/status" in capsys.readouterr().err


def test_help_is_of_the_plug_in(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--help"], kubectl=True)
    assert "usage: kubectl cagrpc status" in capsys.readouterr().out
