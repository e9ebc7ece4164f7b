"""The fault campaign over real processes: a short one finds nothing."""

from __future__ import annotations

from pathlib import Path

from bench.faults.processes import Pace, ProcessCampaign
from tests.support.controlplane.cluster import Cluster

SEED = 1
PACE = Pace(waves=2, faults_seconds=6.0, restores=False)


def test_a_short_one_finds_nothing(cluster: Cluster, tmp_path: Path) -> None:
    result = ProcessCampaign(cluster, tmp_path, SEED, PACE).run(1)
    assert not result.violations
    assert result.told["cycles"] == 1
    assert result.told["increments"]
    assert result.told["nodes that the autoscaler deleted"]
