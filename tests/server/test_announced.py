"""What `serve` tells whoever connects a cluster-autoscaler."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from cagrpc.config.load import load_settings
from cagrpc.server.certificates import ensure_certificates
from cagrpc.server.process import announce
from cagrpc.server.server import Endpoints

CONFIGURATION = """\
state_directory: .
provisioners:
  - name: a
    startup_taints:
      - {key: example.com/agent, effect: NoExecute}
      - {key: startup-taint.cluster-autoscaler.kubernetes.io/known, effect: NoSchedule}
  - name: b
    startup_taints: [{key: example.com/agent, effect: NoExecute}, {key: booting, effect: NoSchedule}]
  - apiVersion: karpenter.sh/v1
    kind: NodePool
    metadata: {name: c}
    spec: {template: {spec: {startupTaints: [{key: node.cilium.io/agent-not-ready, effect: NoExecute}]}}}
"""


def test_the_autoscaler_is_told_once_of_each_startup_taint_that_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "cagrpc.yaml").write_text(CONFIGURATION)
    printed = io.StringIO()
    endpoints = Endpoints(provider="127.0.0.1:1", expander="127.0.0.1:2", http="127.0.0.1:3")
    announce(load_settings(tmp_path / "cagrpc.yaml"), endpoints, Console(file=printed, width=200))
    flags = [line.strip() for line in printed.getvalue().splitlines() if "--startup-taint" in line]
    keys = ("booting", "example.com/agent", "node.cilium.io/agent-not-ready")
    assert flags == [f"--startup-taint={key}" for key in keys]


@pytest.mark.parametrize(
    ("listening", "hosts", "address"),
    [
        ("0.0.0.0", ("localhost", "cagrpc.example.internal"), "cagrpc.example.internal"),
        ("0.0.0.0", ("localhost", "127.0.0.1"), "localhost"),
        ("127.0.0.1", ("localhost", "cagrpc.example.internal"), "localhost"),
    ],
)
def test_the_autoscaler_calls_a_server_on_all_addresses_by_the_name_of_its_certificate(
    tmp_path: Path, listening: str, hosts: tuple[str, ...], address: str
) -> None:
    listen = f'listen: {{provider: "{listening}:8086", expander: "{listening}:8087"}}\n'
    (tmp_path / "cagrpc.yaml").write_text(listen + CONFIGURATION)
    ensure_certificates(tmp_path / "certs", hosts)
    printed = io.StringIO()
    endpoints = Endpoints(provider="localhost:8086", expander="localhost:8087", http="127.0.0.1:8088")
    announce(load_settings(tmp_path / "cagrpc.yaml"), endpoints, Console(file=printed, width=200))
    assert f"--grpc-expander-url={address}:8087\n" in printed.getvalue()
    assert f'address: "{address}:8086"\n' in printed.getvalue()
    assert f'address: "{address}:8086"\n' in (tmp_path / "cloud-config.yaml").read_text()
