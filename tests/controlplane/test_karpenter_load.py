"""Many increments at once over Karpenter's core, a third of them with an offering that cannot be had; and the live load
of 1,000 pods."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from cagrpc import errors
from cagrpc.backends.karpenter.backend import open_backend
from cagrpc.backends.karpenter.plugin import KarpenterSettings, NodeClass, Parameters
from cagrpc.backends.plugin import BackendContext
from cagrpc.cluster.markers import INCREMENT
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Phase
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import SteadyClock
from solver.model import NodeGroup
from tests.controlplane.test_live_openb import GROUPS, PODS, TAINT, create_deployments, prices
from tests.support.controlplane.karpenter import NODE_CLASS, ZONES, Karpenter, configure, offering
from tests.support.controlplane.live import Live

PARAMETERS = Parameters(NodeClass(**NODE_CLASS), 5)
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
COUNT = 100
PATIENCE_SECONDS = 400.0
WAITING_SECONDS = 3600.0
"""As long as Azure's, so that it lasts for the whole test on any machine."""


def group_of(instance_type: str, zone: str) -> NodeGroup:
    allocatable = {"cpu": 900, "memory": 2**30, "pods": 110}
    return NodeGroup(
        offering(instance_type, zone),
        allocatable,
        0.1,
        labels={"karpenter.sh/nodepool": "ours"},
        max_size=1000,
        instance_type=instance_type,
        zone=zone,
        capacity_type="on-demand",
    )


SOUND = (group_of("s-2x-amd64-linux", ZONES[0]), group_of("s-4x-amd64-linux", ZONES[1]))
SCARCE = tuple(group_of(f"c-{size}x-amd64-linux", zone) for size in SIZES for zone in ZONES)
"""One for each increment that cannot be had."""


@contextmanager
def fleet_over(karpenter: Karpenter, directory: Path) -> Iterator[Fleet]:
    groups = (*SOUND, *SCARCE)
    parameters = {group.id: PARAMETERS for group in groups}
    settings = KarpenterSettings(
        unavailable_offerings_seconds=WAITING_SECONDS, parameters=parameters, node_pools=frozenset({"ours"})
    )
    with ExitStack() as undo:
        client = Client.connect(karpenter.cluster.plane.kubeconfig())
        undo.callback(client.close)
        clock = SteadyClock()
        opened = open_backend(settings, BackendContext(directory, clock, client))
        undo.callback(opened.close)
        fleet = Fleet(FleetSettings(groups), opened.backend, SqliteJournal(directory / "journal.sqlite"), clock=clock)
        undo.callback(fleet.close)
        _refresh(fleet)
        yield fleet


def _refresh(fleet: Fleet) -> None:
    """Refresh once NodeClaims are listed, which takes as long as the API server is busy."""
    give_up = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fleet.refresh(wait_seconds=30)
        except errors.Unavailable:
            assert monotonic() < give_up
            sleep(0.1)
        else:
            return


def step_until_finished(fleet: Fleet, ids: list[str]) -> None:
    give_up = monotonic() + PATIENCE_SECONDS
    while any(fleet.increment(each).phase.in_flight for each in ids):
        assert monotonic() < give_up, Counter(fleet.increment(each).phase for each in ids)
        with suppress(errors.Unavailable):
            fleet.reconcile()
        sleep(0.25)  # the fleet's controller steps once a second


def test_every_increment_is_whole_or_gone(karpenter: Karpenter, tmp_path: Path) -> None:
    """Over two groups each, those that cannot be had over three; of these the scarce offering has one machine of the
    two that are asked for. None of it is asked for again while Karpenter would not try it."""
    scarce = {number: SCARCE[number // 3] for number in range(0, COUNT, 3)}
    karpenter.stock({group.id: 1 for group in scarce.values()})
    with fleet_over(karpenter, tmp_path) as fleet:
        asked = [
            IncrementSpec({SOUND[0].id: 2, SOUND[1].id: 1, **({scarce[number].id: 2} if number in scarce else {})})
            for number in range(COUNT)
        ]
        begun = monotonic()
        ids = [fleet.apply(each).id for each in asked]
        step_until_finished(fleet, ids)
        seconds = monotonic() - begun
        phases = [fleet.increment(each).phase for each in ids]
        assert phases == [Phase.ROLLED_BACK if number in scarce else Phase.DONE for number in range(COUNT)]
        standing = Counter(each["metadata"]["annotations"][INCREMENT] for each in karpenter.claims())
        assert standing == {each: 3 for number, each in enumerate(ids) if number not in scarce}
        before = len(karpenter.launches())
        again = [fleet.apply(IncrementSpec({SOUND[0].id: 1, group.id: 1})).id for group in scarce.values()]
        step_until_finished(fleet, again)
        assert {fleet.increment(each).phase for each in again} == {Phase.ROLLED_BACK}
        assert len(karpenter.launches()) == before, "Karpenter was asked again"
        assert all((fleet.increment(each).retry_after_seconds or 0) > WAITING_SECONDS / 2 for each in again)
    print(f"{COUNT} increments, {len(scarce)} of them impossible: all finished after {seconds:.1f} s")


def test_the_live_load_runs_whole(karpenter: Karpenter, live: Live) -> None:
    """As tests/controlplane/test_live_openb with the simulated backend: one round, at the planned cost."""
    recorded = json.loads(GROUPS.read_text())["groups"]
    shapes = {
        name: {
            "cpu": f"{each['cpu_milli']}m",
            "memory": f"{each['memory_mib']}Mi",
            "pods": str(each["pods"]),
            **({"nvidia.com/gpu": str(each["gpu"])} if each["gpu"] else {}),
        }
        for name, each in recorded.items()
    }
    karpenter.offer(shapes)
    groups = {
        name: {
            "id": name,
            "instance_type": name,
            "zone": ZONES[0],
            "capacity_type": "on-demand",
            "allocatable": shape,
            "price_usd_per_hour": prices()[name],
        }
        for name, shape in shapes.items()
    }
    with_gpus = [name for name, each in recorded.items() if each["gpu"]]
    configure(
        live,
        [
            {"name": "cpu", "node_groups": [found for name, found in groups.items() if name not in with_gpus]},
            {"name": "gpu", "taints": [TAINT], "node_groups": [groups[name] for name in with_gpus]},
        ],
        planner={"idle": "3s", "budget": "15s"},
    )
    live.start()
    create_deployments(live.cluster)
    begun = monotonic()
    live.wait_for_running(PODS, seconds=600)
    print(f"{PODS} pods run {monotonic() - begun:.1f} s after their Deployments, on {len(live.nodes())} nodes")
    live.wait_until_settled()
    planned = live.rounds()[0]
    assert planned["pods"] == PODS
    assert set(live.phases()) == {"done"}
    assert len(karpenter.claims()) == len(live.nodes())
    cost = sum(prices()[each] * count for each, count in live.types().items())
    assert cost <= 1.005 * planned["planned_cost_per_hour"]
