"""The Cluster API backend on Cluster API's core, under a fleet in this process: increments are whole or gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.backends.cluster_api.backend import open_backend
from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource
from cagrpc.backends.plugin import BackendContext
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Phase
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import SteadyClock
from solver.model import NodeGroup
from tests.support.controlplane.cluster_api import CLUSTER, WorkloadCluster
from tests.support.controlplane.machine_provider import UNINITIALIZED
from tests.support.controlplane.processes import wait_for
from tests.support.fleet import group

POOLS = ("a", "b", "c")
SHORT = "short"
"""A pool whose machines never come, and whose provider never says so."""
DEADLINE_SECONDS = 899.0
"""Of increments. It passes only where a test says so, so that machines may take as long as they need."""
MANY = 100


class MachineFleet:
    """A fleet over the Cluster; each `start` is a new process as far as it can tell."""

    def __init__(self, workload: WorkloadCluster, directory: Path) -> None:
        self.workload = workload
        self._directory = directory
        self.clock = SteadyClock()
        for pool in (*POOLS, SHORT):
            workload.template(pool, {"cpu": "4", "memory": "8Gi"}, labels={"pool": pool})
            workload.machine_deployment(pool)
        workload.provider.short = {SHORT}
        self.sources = {pool: MachineSource(machine_deployment=pool) for pool in (*POOLS, SHORT)}
        self.groups: list[NodeGroup] = [group(pool, max_size=1000) for pool in (*POOLS, SHORT)]

    @contextmanager
    def start(self) -> Iterator[Fleet]:
        kubeconfig = self.workload.cluster.plane.kubeconfig()
        settings = ClusterApiSettings(CLUSTER, self.workload.namespace, self.sources, kubeconfig=kubeconfig)
        opened = open_backend(settings, BackendContext(self._directory, self.clock))
        journal = SqliteJournal(self._directory / "journal.sqlite")
        of = FleetSettings(self.groups, increment_deadline_seconds=DEADLINE_SECONDS)
        fleet = Fleet(of, opened.backend, journal, clock=self.clock)
        try:
            yield fleet
        finally:
            fleet.close()
            journal.close()
            opened.close()

    def settle(self, fleet: Fleet, seconds: float = 120.0) -> None:
        """Run the fleet until nothing is in flight."""

        def settled() -> bool:
            fleet.reconcile()
            return not any(each.phase.in_flight for each in fleet.snapshot.increments)

        self.wait_for(settled, "nothing is in flight", fleet, seconds)

    def wait_for(self, condition: Callable[[], bool], what: str, fleet: Fleet, seconds: float = 120.0) -> None:
        try:
            wait_for(condition, what, seconds=seconds)
        except AssertionError as error:
            error.add_note(f"problem {fleet.problem}, {[(i.phase, i.message) for i in fleet.snapshot.increments]}")
            error.add_note(f"left: {self.workload.left()}")
            raise

    def pools(self) -> Counter[str]:
        """Nodes by their pool."""
        return Counter(node["metadata"]["labels"]["pool"] for node in self.workload.cluster.nodes())

    def assert_only(self, expected: Mapping[str, int], fleet: Fleet) -> None:
        """So many Nodes there are, each with a Machine and its clones, and nothing else."""
        self.wait_for(lambda: self.pools() == expected, f"the Nodes are {expected}", fleet)
        count = sum(expected.values())
        each_kind = dict.fromkeys(("Machine", "testmachines", "testconfigs", "Node"), count) if count else {}
        self.wait_for(
            lambda: Counter(each.split()[0] for each in self.workload.left()) == each_kind,
            f"there are {count} of each kind",
            fleet,
        )

    def delete_all(self, fleet: Fleet) -> None:
        for group_id, state in fleet.snapshot.groups.items():
            fleet.delete_instances(group_id, [each.id for each in state.instances])

        def gone() -> bool:
            fleet.reconcile()
            return not self.workload.left()

        self.wait_for(gone, "nothing is left", fleet)


@pytest.fixture
def machines(workload: WorkloadCluster, tmp_path: Path) -> MachineFleet:
    return MachineFleet(workload, tmp_path)


def many(count: int, seed: int) -> list[dict[str, int]]:
    """Return increments over several groups, a third of them with a group that cannot be had."""
    random = Random(seed)
    found = []
    for number in range(count):
        deltas = {pool: random.randint(1, 2) for pool in random.sample(POOLS, random.randint(1, len(POOLS)))}
        found.append({**deltas, SHORT: 1} if number % 3 == 0 else deltas)
    return found


def run_many(
    machines: MachineFleet,
    increments: Sequence[Mapping[str, int]],
    fleet: Fleet,
    meanwhile: Callable[[], None] = lambda: None,
) -> Counter[str]:
    """Apply all increments, do something once they are ordered, wait for those that can be had, and let the deadline of
    the others pass; return the Nodes that are to stand, by pool."""
    ids = {fleet.apply(IncrementSpec(deltas)).id: deltas for deltas in increments}
    fleet.reconcile()
    meanwhile()

    def had() -> bool:
        fleet.reconcile()
        return not any(fleet.increment(each).phase.in_flight for each, of in ids.items() if SHORT not in of)

    machines.wait_for(had, "what can be had is there", fleet, seconds=DEADLINE_SECONDS)
    machines.clock.pass_time(DEADLINE_SECONDS)
    machines.settle(fleet, seconds=500)
    expected = Counter[str]()
    for increment_id, deltas in ids.items():
        phase = Phase.ROLLED_BACK if SHORT in deltas else Phase.DONE
        assert fleet.increment(increment_id).phase is phase, fleet.increment(increment_id)
        expected.update(deltas if phase is Phase.DONE else {})
    machines.assert_only(expected, fleet)
    return expected


def test_increments_are_whole_or_gone(machines: MachineFleet) -> None:
    with machines.start() as fleet:
        run_many(machines, many(6, seed=1), fleet)
        machines.delete_all(fleet)


def test_a_known_shortage_does_not_wait_for_the_deadline(machines: MachineFleet) -> None:
    message = "failed to create instance: No valid host was found. There are not enough hosts available."
    machines.workload.provider.failing = {SHORT: ("InstanceCreateFailed", message)}
    with machines.start() as fleet:
        increment = fleet.apply(IncrementSpec({"a": 1, SHORT: 1})).id
        machines.settle(fleet, seconds=60)
        found = fleet.increment(increment)
        assert found.phase is Phase.ROLLED_BACK
        assert "No valid host was found" in found.message
        assert found.short_groups == (SHORT,)
        machines.assert_only({}, fleet)


def test_the_core_is_killed_in_the_middle(machines: MachineFleet) -> None:
    core = machines.workload.core
    with machines.start() as fleet:
        whole = fleet.apply(IncrementSpec({"a": 3, "b": 2})).id
        fleet.reconcile()
        core.stop(kill=True)
        broken = fleet.apply(IncrementSpec({"c": 2, SHORT: 1})).id
        fleet.reconcile()
        assert len(machines.workload.machines()) == 8
        core.start()
        machines.wait_for(lambda: machines.pools()["b"] == 2, "machines come up", fleet)
        core.stop(kill=True)
        fleet.withdraw(broken, "the test says so")
        fleet.reconcile()
        core.start()
        machines.settle(fleet)
        assert [fleet.increment(each).phase for each in (whole, broken)] == [Phase.DONE, Phase.ROLLED_BACK]
        machines.assert_only({"a": 3, "b": 2}, fleet)
        machines.delete_all(fleet)


def test_an_unfinished_order_is_completed_after_a_restart(
    machines: MachineFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends with clones and without Machines."""
    create = Client.create

    def ending(client: Client, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if path.endswith("/machines"):
            raise _Ended
        return create(client, path, body)

    with machines.start() as fleet, monkeypatch.context() as patched:
        patched.setattr(Client, "create", ending)
        increment = fleet.apply(IncrementSpec({"a": 2})).id
        with pytest.raises(_Ended):
            fleet.reconcile()
    assert not machines.workload.machines()
    assert machines.workload.left()
    with machines.start() as fleet:
        machines.settle(fleet)
        assert fleet.increment(increment).phase is Phase.DONE
        machines.assert_only({"a": 2}, fleet)
        machines.delete_all(fleet)


class _Ended(BaseException):
    """The process is gone at this point."""


def test_machines_of_the_deployment_itself_and_ours_leave_each_other_alone(machines: MachineFleet) -> None:
    """It is scaled up and to zero again: nothing of ours is adopted, or deleted as surplus."""
    workload = machines.workload
    deployment = workload.path("machinedeployments", "a")
    with machines.start() as fleet:
        fleet.apply(IncrementSpec({"a": 2}))
        machines.settle(fleet)
        workload.admin.merge(deployment, {"spec": {"replicas": 1}})
        machines.wait_for(lambda: machines.pools()["a"] == 3, "the deployment has a machine", fleet)
        fleet.reconcile()
        assert fleet.snapshot.groups["a"].target_size == 2
        workload.admin.merge(deployment, {"spec": {"replicas": 0}})
        machines.assert_only({"a": 2}, fleet)
        owners = {owner["kind"] for each in workload.machines() for owner in each["metadata"]["ownerReferences"]}
        assert owners == {"Cluster"}
        machines.delete_all(fleet)


def test_cluster_api_sets_the_start_up_taint_before_pods_can_come(machines: MachineFleet) -> None:
    """With its feature gate, by the same write that takes its own taint off."""
    core = machines.workload.core
    core.stop()
    core.start("--feature-gates=MachineTaintPropagation=true")
    machines.sources["a"] = replace(machines.sources["a"], machine_taints=True)
    try:
        with machines.start() as fleet:
            fleet.apply(IncrementSpec({"a": 1}))
            machines.settle(fleet)
            key = UNINITIALIZED["key"]

            def taints() -> set[str]:
                (node,) = machines.workload.cluster.nodes()
                return {each["key"] for each in node["spec"].get("taints", ())}

            seen: list[set[str]] = []
            machines.wait_for(lambda: seen.append(taints()) or key not in seen[-1], "the core has seen it", fleet)  # type: ignore[func-returns-value]
            assert all(found & {key, START_UP_TAINT} for found in seen)
            assert START_UP_TAINT in seen[-1]
            machines.delete_all(fleet)
    finally:
        core.stop()
        core.start()


def test_a_hundred_increments(machines: MachineFleet) -> None:
    """The core is killed in the middle."""

    def restart() -> None:
        wait_for(lambda: machines.workload.provider.launched > MANY // 2, "machines come up")
        machines.workload.core.stop(kill=True)
        machines.workload.core.start()

    with machines.start() as fleet:
        run_many(machines, many(MANY, seed=2), fleet, restart)
        machines.delete_all(fleet)
