"""What `serve` tells whoever connects a cluster-autoscaler."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from cagrpc.config.load import load_settings
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
