"""What is the Cluster API backend's own: objects in both versions, problems, errors, what others do to its Machines.
What every backend does is in `test_conformance`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.backends.cluster_api.backend import ClusterApiBackend, open_backend
from cagrpc.backends.cluster_api.bodies import Kinds, name_of
from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource, Reference
from cagrpc.backends.plugin import BackendContext
from cagrpc.cluster.markers import FLEET_LABEL, TOKEN
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance, Order, OrderedInstance
from cagrpc.fleet.model import InstanceState
from solver.model import NodeGroup, Taint, TaintEffect
from tests.support.api_server import Document, Refusal
from tests.support.fleet import FakeClock, group
from tests.support.management_cluster import (
    CLUSTER,
    NAMESPACE,
    PROVIDER,
    ManagementCluster,
    lost_after,
    management_cluster,
)
from tests.support.waiting import AMPLE_SECONDS

A = group("a", labels={"pool": "a"}, zone="rack-1", taints=(Taint("gpu", TaintEffect.NO_SCHEDULE, "yes"),))
OF_A = MachineSource(machine_deployment="a")
TOKENS = ("i-a-1", "i-a-2")
KUBEADM = "bootstrap.cluster.x-k8s.io"


class Bench:
    """A management cluster with the MachineDeployment `a`, and a backend over it."""

    def __init__(self, api: ManagementCluster) -> None:
        self.api = api
        self.clock = FakeClock()
        api.template("a")
        api.machine_deployment("a")
        self.sources = {"a": OF_A}
        self._opened: list[ClusterApiBackend] = []

    def open(self, **sources: MachineSource) -> ClusterApiBackend:
        client = self.api.client()
        self.sources = sources or self.sources
        settings = ClusterApiSettings(CLUSTER, NAMESPACE, self.sources)
        backend = ClusterApiBackend(client, Kinds(client, NAMESPACE), settings, self.clock, self.clock)
        self._opened.append(backend)
        backend.follow_templates()
        wait(lambda: backend.objects.problem is None)
        return backend

    def close(self) -> None:
        for each in self._opened:
            each.close()

    def made(self, kind: str, token: str = TOKENS[0]) -> Document:
        return self.api.objects[self.api.path(kind, name_of(token))]


@pytest.fixture(params=["v1beta2"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with management_cluster(request.param) as api:
        bench = Bench(api)
        yield bench
        bench.close()


both_versions = pytest.mark.parametrize("bench", ["v1beta2", "v1beta1"], indirect=True)


def wait(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + AMPLE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def order(*tokens: str, of: NodeGroup = A) -> Order:
    found = tuple(OrderedInstance(token, of, ordinal) for ordinal, token in enumerate(tokens or TOKENS))
    return Order("increment", found, frozenset(each.token for each in found))


def listed(backend: ClusterApiBackend) -> dict[str, BackendInstance]:
    return {each.token: each for each in backend.list_instances().instances}


# ---- what is created


@both_versions
def test_a_machine_refers_to_clones_of_its_own_name(bench: Bench) -> None:
    bench.open().order(order())
    name, api = name_of(TOKENS[0]), bench.api
    machine = bench.made("Machine")
    assert machine["apiVersion"] == f"cluster.x-k8s.io/{api.version}"
    assert machine["spec"] == {
        "clusterName": CLUSTER,
        "infrastructureRef": api.reference("TestMachine", name),
        "bootstrap": {"configRef": api.reference("TestConfig", name)},
    }
    clone = bench.made("TestMachine")
    assert clone["spec"] == {"pool": "a"}
    assert clone["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-name"] == "a"
    assert (
        clone["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-groupkind"] == f"TestMachineTemplate.{PROVIDER}"
    )
    uid = api.objects[api.path("Cluster", CLUSTER)]["metadata"]["uid"]
    for each in (machine, clone, bench.made("TestConfig")):
        assert (
            each["metadata"]["labels"].items()
            >= {
                "cluster.x-k8s.io/cluster-name": CLUSTER,
                FLEET_LABEL: "cagrpc",
            }.items()
        )
        assert each["metadata"]["annotations"][TOKEN] == TOKENS[0]
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Cluster", uid)
        assert "finalizers" not in each["metadata"]


@both_versions
def test_fields_of_the_template_are_kept_and_those_of_the_configuration_come_first(bench: Bench) -> None:
    old = bench.api.version == "v1beta1"
    drain: Any = {"nodeDrainTimeout": "5m"} if old else {"deletion": {"nodeDrainTimeoutSeconds": 300}}
    bench.api.machine_deployment("a", version="v1.36.0", failureDomain="rack-9", **drain)
    backend = bench.open()
    backend.order(order(TOKENS[0]))
    spec = bench.made("Machine")["spec"]
    assert (spec["version"], spec["failureDomain"]) == ("v1.36.0", "rack-9")
    assert spec.items() >= drain.items()
    backend = bench.open(a=replace(OF_A, version="v1.36.1", failure_domain="rack-2", node_drain_timeout_seconds=60))
    backend.order(order(TOKENS[1]))
    spec = bench.made("Machine", TOKENS[1])["spec"]
    assert (spec["version"], spec["failureDomain"]) == ("v1.36.1", "rack-2")
    if old:
        assert spec["nodeDrainTimeout"] == "60s"
    else:
        assert spec["deletion"] == {"nodeDrainTimeoutSeconds": 60}


@both_versions
def test_the_zone_is_the_failure_domain_where_the_cluster_has_it(bench: Bench) -> None:
    old = bench.api.version == "v1beta1"
    domains: Any = {"rack-1": {}, "rack-2": {}} if old else [{"name": "rack-1"}, {"name": "rack-2"}]
    bench.api.change(bench.api.path("Cluster", CLUSTER), status={"failureDomains": domains})
    bench.open().order(order(TOKENS[0]))
    bench.open().order(order(TOKENS[1], of=replace(A, zone="elsewhere")))
    assert bench.made("Machine")["spec"]["failureDomain"] == "rack-1"
    assert "failureDomain" not in bench.made("Machine", TOKENS[1])["spec"]


def test_labels_by_which_others_would_adopt_a_machine_are_left_out(bench: Bench) -> None:
    ours = {"node.cluster.x-k8s.io/team": "x", "own": "yes"}
    theirs = {
        "cluster.x-k8s.io/deployment-name": "a",
        "cluster.x-k8s.io/set-name": "a-1",
        "machine-template-hash": "1",
        "topology.cluster.x-k8s.io/owned": "",
    }
    bench.api.machine_deployment("a", {"labels": {**ours, **theirs}, "annotations": {"note": "kept"}})
    bench.open().order(order())
    metadata = bench.made("Machine")["metadata"]
    assert metadata["labels"].items() >= {**ours, "pool": "a"}.items()
    assert not metadata["labels"].keys() & theirs.keys()
    assert metadata["annotations"]["note"] == "kept"


def test_kubeadm_registers_nodes_with_the_start_up_taint(bench: Bench) -> None:
    api = bench.api
    join = {"nodeRegistration": {"name": "x", "taints": [{"key": "mine", "effect": "NoSchedule"}]}}
    spec = {"template": {"spec": {"format": "ignition", "joinConfiguration": join}}}
    api.put(api.path("KubeadmConfigTemplate", "k"), {"spec": spec})
    bench.open(a=replace(OF_A, bootstrap_template=Reference(KUBEADM, "KubeadmConfigTemplate", "k"))).order(order())
    found = bench.made("KubeadmConfig")["spec"]
    assert found["format"] == "ignition"
    registration = found["joinConfiguration"]["nodeRegistration"]
    assert registration["name"] == "x"
    assert registration["taints"] == [
        {"key": "mine", "effect": "NoSchedule"},
        {"key": START_UP_TAINT, "effect": "NoSchedule"},
        {"key": "gpu", "effect": "NoSchedule", "value": "yes"},
    ]
    assert bench.made("Machine")["spec"]["bootstrap"]["configRef"]["kind"] == "KubeadmConfig"


def test_cluster_api_sets_the_taints_where_it_is_told_to(bench: Bench) -> None:
    present = {"key": "gpu", "effect": "NoSchedule", "value": "own", "propagation": "Always"}
    bench.api.machine_deployment("a", taints=[present])
    bench.open(a=replace(OF_A, machine_taints=True)).order(order())
    assert bench.made("Machine")["spec"]["taints"] == [
        present,
        {"key": START_UP_TAINT, "effect": "NoSchedule", "propagation": "OnInitialization"},
    ]


def test_machines_may_share_a_secret_with_bootstrap_data(bench: Bench) -> None:
    bench.open(a=replace(OF_A, bootstrap_data_secret="join")).order(order())
    assert bench.made("Machine")["spec"]["bootstrap"] == {"dataSecretName": "join"}
    assert not bench.api.of("TestConfig")


# ---- what is refused


def test_wrong_templates_are_all_reported_before_anything_is_created(bench: Bench) -> None:
    bench.api.machine_deployment("b", infrastructureRef=bench.api.reference("TestMachineTemplate", "gone"))
    sources = {name: MachineSource(machine_deployment=name) for name in "abc"}
    backend = bench.open(**sources)
    found = tuple(OrderedInstance(f"i-{name}-1", group(name), 0) for name in "abcd")
    with pytest.raises(errors.OrderMisconfigured) as refused:
        backend.order(Order("i", found, frozenset(each.token for each in found)))
    assert refused.value.node_groups == ("b", "c", "d")
    for text in ("TestMachineTemplate.test.cagrpc.io gone", "MachineDeployment c", "group d: has no templates"):
        assert text in str(refused.value)
    assert not bench.api.of("TestMachine")


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (403, "machines is forbidden: exceeded quota: few, requested: count/machines=1", errors.QuotaExceeded),
        (403, "admission webhook denied the request: no", errors.OrderMisconfigured),
        (422, "spec.version: Invalid value", errors.OrderMisconfigured),
        (500, "etcd is away", errors.Unavailable),
    ],
)
def test_what_the_api_server_refuses(bench: Bench, code: int, message: str, expected: type[errors.CagrpcError]) -> None:
    backend = bench.open()

    def before(request: str) -> None:
        if request.startswith("POST") and request.endswith("/machines"):
            raise Refusal(code, message)

    bench.api.before = before
    with pytest.raises(expected, match=message.partition(":")[0]) as refused:
        backend.order(order())
    if isinstance(refused.value, errors.OrderRefused):
        assert refused.value.node_groups == ("a",)


def test_an_object_of_somebody_else_of_the_same_name_stays(bench: Bench) -> None:
    path = bench.api.path("TestMachine", name_of(TOKENS[0]))
    bench.api.put(path, {"spec": {"pool": "theirs"}})
    with pytest.raises(errors.OrderMisconfigured, match="somebody else"):
        bench.open().order(order(TOKENS[0]))
    assert bench.api.objects[path]["spec"] == {"pool": "theirs"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"spec": {"paused": True}}, "is paused"),
        ({"metadata": {"deletionTimestamp": "2026-11-01T00:00:00Z"}}, "is being deleted"),
    ],
)
def test_a_cluster_that_makes_no_machines_is_a_problem(bench: Bench, change: Any, expected: str) -> None:
    backend = bench.open()
    assert backend.problem is None
    bench.api.change(bench.api.path("Cluster", CLUSTER), **change)
    wait(lambda: backend.problem is not None)
    assert expected in str(backend.problem)
    with pytest.raises(errors.Unavailable, match=expected):
        backend.order(order())
    assert not bench.api.of("TestMachine")
    assert listed(backend) == {}


def test_without_the_cluster_object_nothing_is_created(bench: Bench) -> None:
    bench.api.remove(bench.api.path("Cluster", CLUSTER))
    backend = bench.open()
    assert backend.problem == f"there is no Cluster {NAMESPACE}/{CLUSTER}"
    with pytest.raises(errors.Unavailable, match="there is no Cluster"):
        backend.order(order())


def test_another_cluster_is_no_management_cluster(bench: Bench) -> None:
    bench.api.version = "v1alpha4"
    with pytest.raises(errors.InvalidInput, match=r"found only v1alpha4 of .*, expected v1beta2 or v1beta1"):
        bench.open()


def test_opening_without_any_access_says_what_is_missing(tmp_path: Any) -> None:
    settings = ClusterApiSettings(CLUSTER, NAMESPACE, {})
    with pytest.raises(errors.InvalidInput, match="needs the section kubernetes, or a kubeconfig"):
        open_backend(settings, BackendContext(tmp_path, FakeClock()))


# ---- what is listed


@pytest.mark.parametrize(
    ("reason", "message", "kind"),
    [
        ("InstanceProvisionFailed", "InsufficientInstanceCapacity: not enough of it", ErrorKind.CAPACITY),
        ("ServerCreateFailed", "error during placement (resource_unavailable, 8f129)", ErrorKind.CAPACITY),
        ("InstanceCreateFailed", "Quota exceeded for cores, ram: Requested 16", ErrorKind.QUOTA),
        ("ServerCreateFailed", "server limit exceeded (resource_limit_exceeded)", ErrorKind.QUOTA),
        ("InstanceProvisionFailed", "InvalidAMIID.NotFound: The image id does not exist", ErrorKind.CONFIGURATION),
        ("WaitingForBootstrapData", "", None),
        ("CloneFailed", "something else that may get better", None),
    ],
)
def test_words_that_clouds_use_for_failures(bench: Bench, reason: str, message: str, kind: ErrorKind | None) -> None:
    backend = bench.open()
    backend.order(order(TOKENS[0]))
    bench.api.failing["a"] = (reason, message)
    bench.api.step()
    path = bench.api.path("Machine", name_of(TOKENS[0]))
    wait(lambda: backend.objects.by_token()[TOKENS[0]][0].document == bench.api.objects[path])
    found = listed(backend)[TOKENS[0]]
    assert found.state is InstanceState.CREATING
    assert (found.error.kind if found.error else None) is kind
    if found.error is not None:
        assert (found.error.code, found.error.message) == (reason, message)


@pytest.mark.parametrize("inside", [("deprecated", "v1beta1"), ()])
def test_terminal_failures_of_v1beta1(bench: Bench, inside: tuple[str, ...]) -> None:
    backend = bench.open()
    backend.order(order(TOKENS[0]))
    status: Any = {"failureReason": "InsufficientResources", "failureMessage": "no host is free"}
    for each in reversed(inside):
        status = {each: status}
    bench.api.change(bench.api.path("Machine", name_of(TOKENS[0])), status=status)
    wait(lambda: listed(backend)[TOKENS[0]].error)
    error = listed(backend)[TOKENS[0]].error
    assert error is not None
    assert (error.code, error.message, error.kind) == ("InsufficientResources", "no host is free", ErrorKind.CAPACITY)
    bench.api.change(bench.api.path("Machine", name_of(TOKENS[0])), spec={"providerID": "test:///it"})
    wait(lambda: listed(backend)[TOKENS[0]].state is InstanceState.RUNNING)
    assert listed(backend)[TOKENS[0]].error is None


def test_clones_without_a_machine_are_listed_once_nobody_completes_them(bench: Bench) -> None:
    backend = bench.open()
    bench.api.fault = lost_after(0)  # the first clone is created, and the process knows nothing of it
    with pytest.raises(errors.Unavailable):
        backend.order(order(TOKENS[0]))
    bench.api.fault = type(bench.api)().fault
    wait(backend.objects.by_token)
    for _ in range(3):
        assert listed(backend) == {}
        bench.clock.advance(9)
    bench.clock.advance(5)
    found = listed(backend)[TOKENS[0]]
    assert (found.id, found.state, found.node_group) == (TOKENS[0], InstanceState.CREATING, "a")
    assert found.error is not None
    assert "has no Machine" in found.error.message
    backend.delete([found])
    assert not bench.api.of("TestMachine")
    wait(lambda: not listed(backend))


def test_a_machine_that_the_core_has_not_seen_takes_its_clones_along(bench: Bench) -> None:
    backend = bench.open()
    backend.order(order())
    backend.delete(list(listed(backend).values()))
    assert not [each for kind in ("Machine", "TestMachine", "TestConfig") for each in bench.api.of(kind)]


def test_what_deleted_machines_were_waiting_for_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    backend = bench.open()
    backend.order(order())
    bench.api.failing["a"] = ("CloneFailed", "no datastore has room")
    bench.api.step()
    path = bench.api.path("Machine", name_of(TOKENS[1]))
    wait(lambda: backend.objects.by_token()[TOKENS[1]][0].document == bench.api.objects[path])
    backend.delete(list(listed(backend).values()))
    (logged,) = caplog.messages
    names = " or ".join(rf"\({name_of(token)}\)" for token in TOKENS).replace(" or ", "|")
    assert re.fullmatch(
        rf"node group a: machines that had not come up, 2 ({names}): CloneFailed: no datastore has room", logged
    )


def test_the_deletion_of_a_running_machine_is_left_to_the_core(bench: Bench) -> None:
    """It drains the Node before the infrastructure goes."""
    backend = bench.open()
    backend.order(order())
    bench.api.step()
    wait(lambda: all(each.state is InstanceState.RUNNING for each in listed(backend).values()))
    backend.delete(list(listed(backend).values()))
    assert {each.state for each in listed(backend).values()} == {InstanceState.DELETING}
    assert len(bench.api.of("TestMachine")) == 2
    bench.api.step()
    wait(lambda: not listed(backend))
    assert not bench.api.of("TestMachine")


def test_nothing_is_listed_while_the_watches_are_broken(bench: Bench) -> None:
    backend = bench.open()
    backend.order(order())

    def before(request: str) -> None:
        raise Refusal(503, "the API server is away")

    bench.api.before = before
    bench.api.disconnect()
    wait(lambda: backend.objects.problem is not None)
    for call in (backend.list_instances, lambda: backend.order(order()), lambda: backend.delete([])):
        with pytest.raises(errors.Unavailable):
            call()
    assert backend.problem is None, "the fleet reports that it does not answer"
    bench.api.before = lambda _: None
    wait(lambda: backend.objects.problem is None)
    assert listed(backend).keys() == set(TOKENS)
