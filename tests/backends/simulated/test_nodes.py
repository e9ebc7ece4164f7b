"""Nodes of simulated instances, their Leases and pods, with an API server and a backend that fail where it hurts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.backends.simulated.nodes import nodes, pods
from cagrpc.backends.simulated.nodes.controller import NodeController
from cagrpc.backends.simulated.nodes.nodes import LEASES, NodeLeases
from cagrpc.demonstration.wire import pod_bytes
from cagrpc.errors import Unavailable
from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.model import FleetSnapshot, GroupState, InstanceState
from cagrpc.kube.client.envelopes import Encoding, identity
from cagrpc.kube.nodes import NODES
from solver.model import NodeGroup, Taint, TaintEffect
from tests.support.api_server import ApiServer, Refusal, api_server
from tests.support.fleet import FakeClock, ScriptedBackend

_GPU = Taint("nvidia.com/gpu", TaintEffect.NO_SCHEDULE, "present")
_GROUP = NodeGroup(
    "pool/g5.xlarge",
    {"cpu": 3920, "memory": 14 * 2**30},
    1.0,
    labels={"pool": "gpu"},
    taints=(_GPU,),
    instance_type="g5.xlarge",
    zone="a",
)
_LEAVING = {"deletionTimestamp": 1, "deletionGracePeriodSeconds": 30}
NOT_READY = "node.kubernetes.io/not-ready"


class NodesHarness:
    """A cluster, a backend, and a NodeController between them that works only when it is told to."""

    def __init__(self, cluster: ApiServer) -> None:
        self.cluster = cluster
        self.backend = ScriptedBackend()
        self.clock = FakeClock()
        self.groups = [_GROUP]
        self.news = 0
        """How often it has told that a Node is Ready."""
        self.start()

    def start(self) -> None:
        """A new process over the same cluster and backend; it lists what there is."""
        self.life = NodeController(
            self.cluster.client(),
            self.backend,
            self._snapshot,
            now=self.clock,
            clock=self.clock,
            changed=self._note_news,
        )
        self.cluster.unseen.clear()
        objects = tuple(self.cluster.objects.items())
        bound = [pods.decode(pod_bytes(pod)) for path, pod in objects if "/pods/" in path]
        self.life.pods.replaced([pod for pod in bound if pod.node])
        self.life.nodes.replaced([nodes.read(node) for _, node in objects if _ours(node)])

    def _note_news(self) -> None:
        self.news += 1

    def _snapshot(self) -> FleetSnapshot:
        return FleetSnapshot(1, {group.id: GroupState(group, 0) for group in self.groups}, (), {})

    def instance(self, name: str, state: InstanceState = InstanceState.RUNNING) -> None:
        instance_id = f"simulated://{name}"
        self.backend.instances[instance_id] = BackendInstance(instance_id, name, _GROUP.id, state)

    def state(self, name: str, state: InstanceState) -> None:
        known = self.backend.instances[f"simulated://{name}"]
        self.backend.instances[known.id] = replace(known, state=state)

    def see(self) -> None:
        """The informers bring what has changed."""
        while self.cluster.unseen:
            path, document, there = self.cluster.unseen.popleft()
            if "/pods/" in path and document["spec"].get("nodeName"):
                if there:
                    self.life.pods.applied(pods.decode(pod_bytes(document)))
                else:
                    self.life.pods.deleted(identity(Encoding.JSON, document))
            elif _ours(document):
                if there:
                    self.life.nodes.applied(nodes.read(document))
                else:
                    self.life.nodes.deleted(identity(Encoding.JSON, document))

    def pass_seconds(self, seconds: float) -> None:
        """In steps of a tenth, with a comparison each second."""
        for tenth in range(round(seconds * 10)):
            if tenth % 10 == 0:
                try:
                    self.life.step()
                except Unavailable:
                    assert self.backend.unreachable
            self.see()
            self.life.queue.run_due()
            self.life.leases.queue.run_due()
            self.clock.advance(0.1)
        self.see()

    def names(self, part: str) -> set[str]:
        return {path.rpartition("/")[2] for path in self.cluster.objects if part in path}


def _ours(document: dict[str, Any]) -> bool:
    return nodes.is_simulated(document)


@pytest.fixture
def world() -> Iterator[NodesHarness]:
    with api_server() as cluster:
        yield NodesHarness(cluster)


def test_an_instance_that_runs_registers_as_its_group_says(world: NodesHarness) -> None:
    world.instance("one")
    world.instance("two", InstanceState.CREATING)
    world.pass_seconds(2)
    assert world.names("/nodes/") == {"one"}
    node = world.cluster.node("one")
    assert node["metadata"]["labels"] == {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/instance-type": "g5.xlarge",
        "beta.kubernetes.io/os": "linux",
        "cagrpc.io/simulated": "true",
        "failure-domain.beta.kubernetes.io/zone": "a",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "one",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "g5.xlarge",
        "pool": "gpu",
        "topology.disk.csi.azure.com/zone": "a",
        "topology.ebs.csi.aws.com/zone": "a",
        "topology.gke.io/zone": "a",
        "topology.kubernetes.io/zone": "a",
    }
    assert node["spec"]["providerID"] == "simulated://one"
    assert world.cluster.taints("one") == ["nvidia.com/gpu", START_UP_TAINT]
    assert node["status"]["allocatable"] == {"pods": "110", "cpu": "3920m", "memory": "14Gi"}
    ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["lastHeartbeatTime"]) == ("True", "1970-01-12T13:46:40Z")
    lease = world.cluster.objects[f"{LEASES}/one"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "one", "uid": node["metadata"]["uid"]}
    assert lease["metadata"]["ownerReferences"] == [owner]
    assert lease["spec"]["leaseDurationSeconds"] == 40
    world.state("two", InstanceState.RUNNING)
    world.pass_seconds(2)
    assert world.names("/nodes/") == world.names("/leases/") == {"one", "two"}
    assert world.life.problem is None


def test_what_the_lifecycle_controller_lifts_itself_is_not_lifted_twice(world: NodesHarness) -> None:
    world.instance("one")
    world.life.step()
    world.life.queue.run_due()
    path, spec = f"{NODES}/one", world.cluster.node("one")["spec"]
    world.cluster.change(path, spec={"taints": [taint for taint in spec["taints"] if taint["key"] != NOT_READY]})
    world.pass_seconds(5)
    assert [request for request in world.cluster.requests if path in request] == []


def test_another_writer_of_taints_loses_nothing(world: NodesHarness) -> None:
    evict = {"key": "maintenance", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}

    def interfere(request: str) -> None:
        if request == f"PATCH {NODES}/one" and "maintenance" not in world.cluster.taints("one"):
            world.cluster.taint("one", evict)

    world.cluster.before = interfere
    world.instance("one")
    world.pass_seconds(2)
    assert world.cluster.taints("one") == ["nvidia.com/gpu", START_UP_TAINT, "maintenance"]
    assert world.cluster.node("one")["spec"]["taints"][-1] == evict


def test_a_bound_pod_runs(world: NodesHarness) -> None:
    world.instance("one")
    early = world.cluster.pod("early", node="one")
    world.pass_seconds(2)
    late = world.cluster.pod(
        "late",
        node="one",
        spec={
            "hostNetwork": True,
            "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
        },
    )
    world.pass_seconds(1)
    for path in (early, late):
        status = world.cluster.objects[path]["status"]
        assert status["phase"] == "Running"
        assert {"Ready", "ContainersReady", "Initialized", "PodScheduled"} <= {c["type"] for c in status["conditions"]}
        assert {c["status"] for c in status["conditions"]} == {"True"}
        assert [(c["name"], c["ready"], list(c["state"])) for c in status["containerStatuses"]] == [
            ("main", True, ["running"])
        ]
    status = world.cluster.objects[late]["status"]
    assert [(c["name"], list(c["state"])) for c in status["initContainerStatuses"]] == [
        ("setup", ["terminated"]),
        ("proxy", ["running"]),
    ]
    machine = world.cluster.node("one")["status"]["addresses"][0]["address"]
    assert status["podIP"] == status["hostIP"] == machine
    assert world.cluster.objects[early]["status"]["podIP"] != machine


def test_pods_that_end_or_run_are_left_as_they_are(world: NodesHarness) -> None:
    world.instance("one")
    done = world.cluster.pod("done", node="one", status={"phase": "Succeeded"})
    world.pass_seconds(3)
    assert world.cluster.objects[done]["status"] == {"phase": "Succeeded"}


def test_a_deleted_pod_goes_and_one_with_a_finalizer_ends_first(world: NodesHarness) -> None:
    world.instance("one")
    world.pass_seconds(1)
    plain = world.cluster.pod("plain", node="one")
    job = world.cluster.pod("job", node="one", metadata={"finalizers": ["batch.kubernetes.io/job-tracking"]})
    finished = world.cluster.pod("finished", node="one", metadata={"finalizers": ["x"]}, status={"phase": "Succeeded"})
    world.pass_seconds(1)
    for path in (plain, job, finished):
        world.cluster.change(path, metadata=_LEAVING)
    world.pass_seconds(1)
    assert plain not in world.cluster.objects
    assert world.cluster.objects[job]["status"]["phase"] == "Failed"
    assert world.cluster.objects[finished]["status"]["phase"] == "Succeeded"
    assert [world.cluster.objects[path]["metadata"]["deletionGracePeriodSeconds"] for path in (job, finished)] == [0, 0]
    world.cluster.requests.clear()
    world.pass_seconds(5)  # what is left is its finalizers' business
    assert [request for request in world.cluster.requests if "/pods/" in request] == []


@pytest.mark.parametrize("restart", [False, True])
def test_a_pod_that_the_api_server_has_half_deleted_is_deleted_again(world: NodesHarness, restart: bool) -> None:
    """It marks the pod, and ends before it removes it."""
    world.instance("one")
    world.pass_seconds(1)
    path = world.cluster.pod("web", node="one")
    other = world.cluster.pod("other", node="not-ours")
    world.pass_seconds(1)

    def end_in_between(request: str) -> None:
        if request == f"DELETE {path}":
            world.cluster.change(path, metadata={"deletionTimestamp": 1, "deletionGracePeriodSeconds": 0})
            world.cluster.before = lambda _: None
            raise Refusal(500)

    world.cluster.before = end_in_between
    world.cluster.change(path, metadata=_LEAVING)
    world.cluster.change(other, metadata={"deletionTimestamp": 1, "deletionGracePeriodSeconds": 0})
    world.see()
    world.life.queue.run_due()
    assert world.cluster.objects[path]["metadata"]["deletionGracePeriodSeconds"] == 0
    if restart:
        world.start()
    world.pass_seconds(12)
    assert path not in world.cluster.objects
    assert other in world.cluster.objects


@pytest.mark.parametrize("how", ["deleting", "gone"])
def test_with_its_instance_a_node_goes_with_all_that_is_on_it(world: NodesHarness, how: str) -> None:
    for name in ("one", "two"):
        world.instance(name)
    world.pass_seconds(2)
    pods = {name: world.cluster.pod(f"on-{name}", node=name) for name in ("one", "two")}
    world.pass_seconds(1)
    world.cluster.requests.clear()
    if how == "deleting":
        world.state("one", InstanceState.DELETING)
    else:
        world.backend.vanish("simulated://one")
    world.pass_seconds(3)
    assert world.names("/nodes/") == world.names("/leases/") == {"two"}
    assert pods["one"] not in world.cluster.objects
    assert world.cluster.objects[pods["two"]]["status"]["phase"] == "Running"
    assert [request for request in world.cluster.requests if "one" in request] == [
        f"PATCH {NODES}/one",  # cordoned, so that nobody takes the room that the pods leave
        f"DELETE {pods['one']}",
        f"DELETE {LEASES}/one",
        f"DELETE {NODES}/one",
    ]


def test_what_was_bound_at_the_last_moment_goes_too(world: NodesHarness) -> None:
    world.instance("one")
    world.pass_seconds(2)
    world.backend.vanish("simulated://one")
    world.pass_seconds(2)
    assert world.names("/nodes/") == set()
    late = world.cluster.pod("late", node="one")
    world.pass_seconds(1)
    assert late not in world.cluster.objects


def test_pods_run_on_the_node_of_an_instance_that_runs_again(world: NodesHarness) -> None:
    """After a clock was set back for a while, an instance is not running yet, and then it is."""
    world.instance("one")
    world.pass_seconds(2)
    world.state("one", InstanceState.CREATING)
    world.pass_seconds(2)
    assert not world.names("/nodes/")
    world.state("one", InstanceState.RUNNING)
    world.pass_seconds(2)
    path = world.cluster.pod("web", node="one")
    world.pass_seconds(2)
    assert world.cluster.objects[path]["status"]["phase"] == "Running"


def test_nothing_is_removed_while_the_backend_is_out_of_reach(world: NodesHarness) -> None:
    world.instance("one")
    world.instance("two")
    world.pass_seconds(2)
    world.start()
    world.backend.unreachable = True
    world.backend.vanish("simulated://one")
    world.pass_seconds(5)
    assert world.names("/nodes/") == {"one", "two"}
    world.backend.unreachable = False
    world.pass_seconds(2)
    assert world.names("/nodes/") == {"two"}


def test_a_removal_under_way_waits_for_a_backend_that_is_lost(world: NodesHarness) -> None:
    world.instance("one")
    world.pass_seconds(2)

    def refuse(request: str) -> None:
        if request.startswith("DELETE"):
            raise Refusal(503)

    world.cluster.before = refuse
    world.backend.vanish("simulated://one")
    world.pass_seconds(1)
    world.backend.unreachable = True
    world.pass_seconds(1)
    world.cluster.before = lambda request: None
    world.pass_seconds(20)
    assert world.names("/nodes/") == {"one"}
    world.backend.unreachable = False
    world.pass_seconds(2)
    assert world.names("/nodes/") == set()


def test_nodes_of_others_are_never_touched(world: NodesHarness, caplog: pytest.LogCaptureFixture) -> None:
    path = f"{NODES}/default"
    world.cluster.put(path, {"spec": {"taints": [{"key": NOT_READY, "effect": "NoSchedule"}]}, "status": {}})
    pod = world.cluster.pod("theirs", node="default", metadata=_LEAVING)
    before = dict(world.cluster.objects)
    world.instance("default")
    world.instance("one")
    world.pass_seconds(30)
    assert world.names("/nodes/") == {"default", "one"}
    assert {key: world.cluster.objects[key] for key in (path, pod)} == before
    told = "instance simulated://default has no Node: there is another one called default, which is left alone"
    assert world.life.problem == told
    assert caplog.text.count(told) == 1


def test_a_node_with_our_label_alone_is_not_ours(world: NodesHarness) -> None:
    path = f"{NODES}/real"
    labels = {"cagrpc.io/simulated": "true"}
    world.cluster.put(path, {"metadata": {"labels": labels}, "spec": {"providerID": "aws:///zone/i-1"}})
    before = world.cluster.objects[path]
    world.pass_seconds(5)
    world.start()
    world.pass_seconds(5)
    assert world.cluster.objects[path] == before


def test_an_instance_of_an_unknown_group_has_no_node_until_it_is_known(world: NodesHarness) -> None:
    world.groups = []
    world.instance("one")
    world.pass_seconds(2)
    assert world.names("/nodes/") == set()
    assert "node group pool/g5.xlarge is not known" in str(world.life.problem)
    world.groups = [_GROUP]
    world.pass_seconds(10)
    assert world.names("/nodes/") == {"one"}
    assert world.life.problem is None


def test_a_new_process_goes_on_with_what_is_there(world: NodesHarness) -> None:
    for name in ("one", "two", "three"):
        world.instance(name)
    world.pass_seconds(2)
    running = world.cluster.pod("running", node="one")
    world.pass_seconds(1)
    # While nobody was there: the Node of one was given up, two is lost, a pod was bound to three.
    conditions = [{"type": "Ready", "status": "Unknown"}]
    world.cluster.change(f"{NODES}/one", status={"conditions": conditions})
    world.cluster.taint("one", {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"})
    world.backend.vanish("simulated://two")
    waiting = world.cluster.pod("waiting", node="three")
    uids = {name: world.cluster.node(name)["metadata"]["uid"] for name in ("one", "three")}
    started = world.cluster.objects[running]["status"]["startTime"]
    world.clock.advance(300)
    world.cluster.requests.clear()
    world.start()
    world.pass_seconds(3)
    assert {name: world.cluster.node(name)["metadata"]["uid"] for name in world.names("/nodes/")} == uids
    ready = [c["status"] for c in world.cluster.node("one")["status"]["conditions"] if c["type"] == "Ready"]
    assert ready == ["True"]
    # Its taints are the lifecycle controller's, which sees that.
    assert "node.kubernetes.io/unreachable" in world.cluster.taints("one")
    assert world.cluster.objects[waiting]["status"]["phase"] == "Running"
    assert world.cluster.objects[running]["status"]["startTime"] == started
    assert sorted(request for request in world.cluster.requests if request.startswith("POST")) == []
    renewed = {world.cluster.objects[f"{LEASES}/{name}"]["spec"]["renewTime"][:19] for name in uids}
    assert renewed == {"1970-01-12T13:51:43"}


def test_the_fleet_is_told_of_each_node_that_becomes_ready(world: NodesHarness) -> None:
    world.instance("one")
    world.pass_seconds(3)
    assert world.news == 1
    world.instance("two")
    world.pass_seconds(3)
    assert world.news == 2
    world.cluster.change(f"{NODES}/one", status={"conditions": [{"type": "Ready", "status": "Unknown"}]})
    world.pass_seconds(3)
    assert world.news == 3, "it is Ready again"
    world.backend.vanish("simulated://two")
    world.pass_seconds(3)
    assert world.news == 3


def test_a_node_that_somebody_deletes_registers_again(world: NodesHarness) -> None:
    world.instance("one")
    world.pass_seconds(2)
    world.cluster.change(f"{NODES}/one", spec={"taints": []})  # let go
    world.cluster.remove(f"{NODES}/one")
    world.pass_seconds(3)
    assert world.cluster.taints("one") == ["nvidia.com/gpu", START_UP_TAINT]


def _story(world: NodesHarness) -> None:
    """A node comes, a pod runs on it, another goes, a node goes."""
    for name in ("one", "two"):
        world.instance(name)
    world.pass_seconds(3)
    leaving = world.cluster.pod("leaving", node="one")
    world.cluster.pod("stays", node="one")
    world.cluster.pod("moves", node="two")
    world.pass_seconds(2)
    world.cluster.change(leaving, metadata=_LEAVING)
    world.backend.vanish("simulated://two")
    world.pass_seconds(3)


def _requests_of_the_story() -> int:
    with api_server() as cluster:
        _story(NodesHarness(cluster))
        return len(cluster.requests)


@pytest.mark.parametrize("fault", ["away", "answer lost"])
def test_it_converges_whichever_request_fails(fault: str) -> None:
    for failing in range(_requests_of_the_story()):
        with api_server() as cluster:
            world = NodesHarness(cluster)
            seen = 0

            def fail(request: str, cluster: ApiServer = cluster, failing: int = failing) -> None:
                nonlocal seen
                seen += 1
                if seen - 1 == failing:
                    raise Refusal(500, lost=fault == "answer lost")

            cluster.before = fail
            _story(world)
            world.pass_seconds(3)
            assert world.names("/nodes/") == world.names("/leases/") == {"one"}, failing
            assert world.cluster.taints("one") == ["nvidia.com/gpu", START_UP_TAINT], failing
            assert world.names("/pods/") == {"stays"}, failing
            assert world.cluster.objects["/api/v1/namespaces/default/pods/stays"]["status"]["phase"] == "Running"
            assert world.life.problem is None, failing


def test_the_api_server_may_be_away_for_long(world: NodesHarness, caplog: pytest.LogCaptureFixture) -> None:
    world.instance("one")
    world.pass_seconds(2)
    world.cluster.pod("waiting", node="one")

    def away(request: str) -> None:
        raise Refusal(503, "the storage is away")

    world.cluster.before = away
    world.instance("two")
    world.cluster.requests.clear()
    world.pass_seconds(120)
    assert "the storage is away" in str(world.life.problem)
    assert len(caplog.records) < 8
    assert len(world.cluster.requests) < 100
    world.cluster.before = lambda request: None
    world.pass_seconds(20)
    assert world.names("/nodes/") == world.names("/leases/") == {"one", "two"}
    assert world.life.problem is None


def test_leases_are_renewed_in_time_and_evenly() -> None:
    with api_server() as cluster:
        clock = FakeClock()
        names = [f"node-{number:03d}" for number in range(200)]
        by_name = {name: nodes.SimulatedNode(name, name, "", 1, True, False, ()) for name in names}
        leases = NodeLeases(cluster.client(), by_name.get, now=clock, clock=clock)
        for name in names:
            leases.keep(name)
        leases.queue.run_due()
        renewed: dict[str, list[float]] = {name: [] for name in names}
        per_second: Counter[int] = Counter()
        for tenth in range(1000):
            cluster.unseen.clear()
            leases.queue.run_due()
            for path, _, _ in cluster.unseen:
                renewed[path.rpartition("/")[2]].append(tenth / 10)
                per_second[tenth // 10] += 1
            clock.advance(0.1)
        gaps = [later - sooner for times in renewed.values() for sooner, later in pairwise(times)]
        assert max(gaps) <= 22.2
        assert min(len(times) for times in renewed.values()) >= 4
        # 200 nodes over 22 s are 9 a second; a wave would be 200.
        assert max(per_second.values()) < 30


def test_post_registration_labels_come_after_a_node_has_joined(world: NodesHarness) -> None:
    world.groups = [replace(_GROUP, labels={"pool": "gpu", "gpu": "a10g"}, post_registration_labels=frozenset({"gpu"}))]
    world.instance("one")
    world.life.step()
    world.life.queue.run_due()
    registered = world.cluster.node("one")["metadata"]["labels"]
    assert (registered["pool"], "gpu" in registered) == ("gpu", False)
    world.pass_seconds(2)
    assert world.cluster.node("one")["metadata"]["labels"] == {**registered, "gpu": "a10g"}
    assert world.life.problem is None
