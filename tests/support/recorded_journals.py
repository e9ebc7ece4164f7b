"""The journals that commit 828cd94 wrote (`tests/data/upgrade`), and the backend and cluster state recorded with
them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.model import ExpectedPod, InstanceState, Phase
from cagrpc.fleet.records import BACKEND, DISRUPTIONS, KINDS, OWN, Contents
from solver.model import Limit, Taint, TaintEffect
from tests.support.fleet import FakeClock, FleetHarness, ScriptedNodes, group

FOLDER = Path(__file__).parents[1] / "data/upgrade"
SQLITE_FILE = FOLDER / "journal.sqlite"


def recorded(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def as_recorded(contents: Contents) -> dict[str, list[Any]]:
    """The records as today's release writes them, comparable with `records.json`."""
    kinds = (kind for kind in KINDS if kind not in (DISRUPTIONS, BACKEND, OWN))
    found = {kind.plural: [kind.value(record) for record in contents.of(kind).values()] for kind in kinds}
    read: dict[str, list[Any]] = json.loads(json.dumps(found))
    return read


@dataclass
class Upgrade:
    """Today's fleet over a recorded journal. Node group `retired` is configured no longer."""

    harness: FleetHarness
    nodes: ScriptedNodes
    fleet: Fleet
    ids: dict[str, str]
    """The recorded increments by what became of them."""

    def phase(self, name: str) -> Phase:
        return self.fleet.increment(self.ids[name]).phase

    def boot(self) -> None:
        """Run every machine that is being created, with its Node Ready."""
        self.harness.backend.boot_all()
        self.nodes.ready.update(self.harness.backend.ids())
        self.fleet.reconcile()


def start_on(journal: Journal) -> Upgrade:
    """Start today's fleet on the journal, beside the backend and cluster as the earlier release left them."""
    outside = recorded("outside")
    nodes = ScriptedNodes()
    nodes.ready.update(outside["ready_nodes"])
    gold: dict[str, Any] = {
        "zone": "zone-b",
        "labels": {"tier": "gold"},
        "taints": (Taint("dedicated", TaintEffect.NO_SCHEDULE, "gold"),),
    }
    harness = FleetHarness(
        groups=[group("a", max_size=20), group("b", max_size=20, **gold)],
        limits=[Limit("cores", {"cpu": 400_000}, node_groups=frozenset({"a", "b"}))],
        clock=FakeClock(outside["now_seconds"]),
        journal=journal,
        options={"nodes": nodes},
    )
    harness.backend.tokens.update(outside["tokens"])
    for each in outside["instances"]:
        instance = BackendInstance(each["id"], each["token"], each["node_group"], InstanceState(each["state"]))
        harness.backend.instances[instance.id] = instance
    return Upgrade(harness, nodes, harness.fleet(), outside["increments"])


def check_reads_and_finishes(journal: Journal) -> None:
    """Read the recorded journal, see what the earlier release saw, and finish every increment and deletion in it."""
    outside = recorded("outside")
    upgrade = start_on(journal)
    fleet, backend = upgrade.fleet, upgrade.harness.backend
    snapshot = fleet.snapshot
    assert {key: state.target_size for key, state in snapshot.groups.items()} == outside["targets"]
    in_flight = {f"expected/{pod}" if isinstance(pod, ExpectedPod) else pod for pod in snapshot.in_flight_pods}
    assert in_flight == set(outside["in_flight_pods"])
    requested = {key: sorted(uids) for key, uids in snapshot.requested_instances.items()}
    (new,) = (key for key, i in backend.instances.items() if i.token == f"{upgrade.ids['planned']}-b-1")
    assert requested.pop(new) == ["5a1e7c3e-0000-4000-8000-000000000003"]
    assert requested == outside["requested_instances"]
    assert set(snapshot.held_instances) == {*outside["held_instances"], new}
    found = {name: upgrade.phase(name) for name in upgrade.ids}
    assert found == {
        "done": Phase.DONE,
        "short": Phase.ROLLED_BACK,
        "failed": Phase.ROLLED_BACK,
        "ready": Phase.READY,
        "rolling_back": Phase.ROLLING_BACK,
        "creating": Phase.CREATING,
        "planned": Phase.CREATING,  # ordered by the start's first step
    }
    assert backend.executed_orders == [f"{upgrade.ids['planned']}-b-1"]
    assert fleet.increment(upgrade.ids["short"]).short_groups == ("b",)
    assert [len((*node.pods, *node.requests)) for node in fleet.increment(upgrade.ids["ready"]).held] == [1, 2]

    backend.finish_deletes()
    upgrade.boot()
    assert upgrade.phase("rolling_back") is Phase.ROLLED_BACK
    for name in ("ready", "creating", "planned"):
        assert upgrade.phase(name) is Phase.READY
        fleet.release(upgrade.ids[name])
        assert upgrade.phase(name) is Phase.DONE
    assert not fleet.snapshot.in_flight_pods
    failed = [each for each in fleet.snapshot.groups["b"].instances if each.error is not None]
    assert [each.error.code for each in failed if each.error is not None] == ["stockout", "stockout"]
    fleet.delete_instances("b", [each.id for each in failed])
    fleet.delete_instances("retired", [each.id for each in fleet.snapshot.groups["retired"].instances])
    fleet.reconcile()
    backend.finish_deletes()
    fleet.reconcile()
    assert fleet.problem is None
    assert {key: state.target_size for key, state in fleet.snapshot.groups.items()} == {"a": 3, "b": 2}
    assert sorted(backend.ids()) == sorted(fleet.snapshot.group_of_instance)
    assert backend.executed_orders == [f"{upgrade.ids['planned']}-b-1"]  # nothing was ordered twice
