"""What the Karpenter backend makes of NodeClaims, Events and NodePools, beside what every backend promises
(`test_conformance`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.backends.karpenter.backend import KarpenterBackend, open_backend
from cagrpc.backends.karpenter.claims import NODE_CLAIMS, SHORTAGE, name_of
from cagrpc.backends.karpenter.plugin import Parameters
from cagrpc.backends.karpenter.pools import NODE_POOLS
from cagrpc.backends.karpenter.store import LAUNCH_SECONDS, REASON_SECONDS, UNSEEN_SECONDS
from cagrpc.backends.plugin import BackendContext
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance, Order, OrderedInstance
from cagrpc.fleet.model import InstanceState
from solver.model import NodeGroup, Taint, TaintEffect
from tests.support.api_server import ApiServer, Fault, api_server
from tests.support.fleet import FakeClock, group
from tests.support.karpenter import CLASSES, KINDS, SHORT, PlayedKarpenter, settings_for

A = group("a", zone="zone-1", capacity_type="spot", labels={"karpenter.sh/nodepool": "pool", "team": "x"})
B = replace(A, id="b", instance_type="b", labels={"karpenter.sh/nodepool": "other"})
FROZEN: dict[str, Any] = {
    "limits": {"cpu": "0"},
    "disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]},
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server(*KINDS) as api:
        yield api


@pytest.fixture
def karpenter(api: ApiServer) -> PlayedKarpenter:
    return PlayedKarpenter(api, FakeClock())


@pytest.fixture
def backend(karpenter: PlayedKarpenter) -> KarpenterBackend:
    return karpenter.open(settings_for(A, B))


def order(*groups: NodeGroup, each: int = 1) -> Order:
    instances = tuple(
        OrderedInstance(f"0123456789ab-{found.id}-{number + 1}", found, number)
        for found in groups
        for number in range(each)
    )
    return Order("0123456789ab", instances, frozenset(one.token for one in instances))


def only(backend: KarpenterBackend) -> BackendInstance:
    (found,) = backend.list_instances().instances
    return found


def node_pool(api: ApiServer, name: str, **spec: Any) -> None:
    api.put(f"{NODE_POOLS}/{name}", {"metadata": {"name": name}, "spec": spec})


def test_a_node_claim_says_what_its_node_group_says(api: ApiServer, karpenter: PlayedKarpenter) -> None:
    labels = {
        "karpenter.sh/nodepool": "pool",
        "team": "x",
        "kubernetes.io/arch": "arm64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": "zone-1",
        "karpenter.k8s.aws/instance-family": "m7g",
    }
    taints = (Taint("gpu", TaintEffect.NO_SCHEDULE, "yes"), Taint("bare", TaintEffect.NO_EXECUTE))
    found = replace(A, id="pool/m7g.large/zone-1/spot", instance_type="m7g.large", labels=labels, taints=taints)
    settings = settings_for(found)
    agent = Taint("example.com/agent", TaintEffect.NO_SCHEDULE)
    parameters = replace(settings.parameters[found.id], startup_taints=(agent,), termination_grace_period_seconds=90)
    backend = karpenter.open(replace(settings, parameters={found.id: parameters}))
    asked = order(found)
    (token,) = asked.wanted
    backend.order(asked)
    claim = api.objects[f"{NODE_CLAIMS}/{name_of(token)}"]
    assert claim["spec"] == {
        "nodeClassRef": {"group": "karpenter.example.com", "kind": "ExampleNodeClass", "name": "default"},
        "requirements": [
            {"key": key, "operator": "In", "values": [value]}
            for key, value in (
                ("node.kubernetes.io/instance-type", "m7g.large"),
                ("topology.kubernetes.io/zone", "zone-1"),
                ("karpenter.sh/capacity-type", "spot"),
                ("kubernetes.io/arch", "arm64"),
                ("kubernetes.io/os", "linux"),
            )
        ],
        "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "bare", "effect": "NoExecute"}],
        "startupTaints": [
            {"key": START_UP_TAINT, "effect": "NoSchedule"},
            {"key": "example.com/agent", "effect": "NoSchedule"},
        ],
        "expireAfter": "Never",
        "terminationGracePeriod": "90s",
    }
    metadata = claim["metadata"]
    assert metadata["labels"] == {"karpenter.sh/nodepool": "pool", "team": "x", "cagrpc.io/fleet": "cagrpc"}
    assert metadata["annotations"]["cagrpc.io/token"] == token
    assert metadata["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert "finalizers" not in metadata
    assert len(metadata["name"]) <= 63


def test_without_a_zone_karpenter_chooses_one(api: ApiServer, karpenter: PlayedKarpenter) -> None:
    zoneless = replace(A, zone="zone-a")  # the catalogue's, where it has no zones
    karpenter.open(settings_for(zoneless)).order(order(zoneless))
    (claim,) = (found for path, found in api.objects.items() if path.startswith(NODE_CLAIMS))
    assert "topology.kubernetes.io/zone" not in {each["key"] for each in claim["spec"]["requirements"]}


def test_an_instance_runs_once_its_node_is_registered(karpenter: PlayedKarpenter, backend: KarpenterBackend) -> None:
    """Not before: Karpenter still writes the Node's taints and labels until then."""
    backend.order(order(A))
    karpenter.advance(0.5)
    launched = only(backend)
    assert launched.id.startswith("example:///")
    assert launched.state is InstanceState.CREATING
    karpenter.advance(1)
    assert only(backend) == replace(launched, state=InstanceState.RUNNING)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (SHORT, ErrorKind.CAPACITY),
        ("VcpuLimitExceeded: You have requested more vCPU capacity", ErrorKind.QUOTA),
        ("this subscription has reached the regional vCPU quota for spot (LowPriorityQuota)", ErrorKind.QUOTA),
    ],
)
def test_a_shortage_is_known_with_its_event(
    karpenter: PlayedKarpenter, backend: KarpenterBackend, message: str, kind: ErrorKind
) -> None:
    karpenter.answer = lambda _: f"{SHORTAGE}: {message}"
    backend.order(order(A))
    karpenter.advance(0.5)
    failed = only(backend)
    assert failed.state is InstanceState.CREATING
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == (SHORTAGE, message)
    assert (failed.error.kind, failed.error.retry_after_seconds) == (kind, 180)
    backend.delete([failed])
    assert backend.list_instances().instances == ()


def test_an_event_that_comes_late_is_waited_for(karpenter: PlayedKarpenter, backend: KarpenterBackend) -> None:
    karpenter.answer = lambda _: ""
    asked = order(A)
    backend.order(asked)
    karpenter.advance(0.5)
    assert only(backend).error is None
    karpenter.event(name_of(min(asked.wanted)), SHORTAGE, SHORT)
    karpenter.advance(REASON_SECONDS / 2)
    error = only(backend).error
    assert error is not None
    assert error.kind is ErrorKind.CAPACITY
    assert error.retry_after_seconds == 180 - REASON_SECONDS / 2


def test_a_shortage_is_known_before_karpenter_has_let_the_node_claim_go(
    karpenter: PlayedKarpenter, backend: KarpenterBackend
) -> None:
    """Its core takes a second for that. Other warnings about the same NodeClaim come between."""
    asked = order(A)
    backend.order(asked)
    karpenter.launching = False
    name = name_of(min(asked.wanted))
    karpenter.event(name, SHORTAGE, SHORT)
    karpenter.event(name, "TerminationGracePeriodExpiring", "All pods will be deleted by then")
    karpenter.advance(0.1)
    error = only(backend).error
    assert error is not None
    assert (error.kind, error.message) == (ErrorKind.CAPACITY, SHORT)
    karpenter.api.remove(f"{NODE_CLAIMS}/{name}")
    karpenter.advance(0.1)
    after = only(backend).error
    assert after is not None
    assert (after.kind, after.message) == (error.kind, SHORT)
    assert after.retry_after_seconds == pytest.approx(180, abs=0.2)


def test_an_event_that_expires_is_forgotten(karpenter: PlayedKarpenter, backend: KarpenterBackend) -> None:
    asked = order(A)
    name = name_of(min(asked.wanted))
    karpenter.event(name, SHORTAGE, SHORT)
    karpenter.advance(1)
    karpenter.api.remove(next(path for path in karpenter.api.objects if name in path))
    karpenter.advance(1)
    backend.order(asked)
    karpenter.advance(1)
    assert only(backend).error is None


def test_without_an_event_a_node_class_that_is_not_ready_is_why(
    karpenter: PlayedKarpenter, backend: KarpenterBackend
) -> None:
    karpenter.answer = lambda _: ""
    karpenter.node_class(ready=False)
    backend.order(order(A))
    karpenter.advance(0.5)
    karpenter.advance(REASON_SECONDS)
    error = only(backend).error
    assert error is not None
    assert error.kind is ErrorKind.CONFIGURATION
    assert error.message == "ExampleNodeClass default is not Ready: no subnets"


@pytest.mark.parametrize("readable", [True, False])
def test_without_an_event_and_with_a_node_class_that_is_ready_it_is_a_shortage(
    karpenter: PlayedKarpenter, backend: KarpenterBackend, readable: bool
) -> None:
    """Karpenter's Events are late or lost where it sends many."""
    karpenter.answer = lambda _: ""
    if not readable:
        karpenter.api.remove(f"{CLASSES}/default")
    backend.order(order(A))
    karpenter.advance(0.5)
    karpenter.advance(REASON_SECONDS)
    failed = only(backend)
    assert failed.error is not None
    assert (failed.error.kind, failed.error.retry_after_seconds) == (ErrorKind.CAPACITY, 180 - REASON_SECONDS)
    backend.delete([failed])
    with pytest.raises(errors.OutOfCapacity):
        backend.order(order(replace(A, id="twin")))


def test_of_an_offering_that_is_short_nothing_is_asked_again(api: ApiServer, karpenter: PlayedKarpenter) -> None:
    """By no other node group of the same offering either, before Karpenter itself would ask the cloud again."""
    twin = replace(A, id="twin")
    backend = karpenter.open(settings_for(A, B, twin))
    karpenter.answer = lambda _: f"{SHORTAGE}: {SHORT}"
    backend.order(order(A))
    karpenter.advance(0.5)
    backend.delete(backend.list_instances().instances)
    karpenter.answer = lambda _: None
    karpenter.advance(100)
    with pytest.raises(errors.OutOfCapacity, match="a/zone-1/spot") as refused:
        backend.order(order(B, twin, each=2))
    assert refused.value.node_groups == ("twin",)
    assert refused.value.retry_after_seconds == pytest.approx(80)
    assert not [path for path in api.objects if path.startswith(NODE_CLAIMS)]
    karpenter.advance(80)
    backend.order(order(twin))
    karpenter.advance(1)
    karpenter.advance(1)
    assert only(backend).state is InstanceState.RUNNING


def test_a_launch_that_is_tried_again_and_again_is_an_error_after_a_while(
    karpenter: PlayedKarpenter, backend: KarpenterBackend
) -> None:
    karpenter.fails = {"a": ("LaunchFailed", "UnauthorizedOperation: You are not authorized to perform this operation")}
    backend.order(order(A))
    karpenter.advance(1)
    karpenter.advance(LAUNCH_SECONDS - 2)
    assert only(backend).error is None
    karpenter.advance(2)
    error = only(backend).error
    assert error is not None
    assert (error.code, error.kind) == ("LaunchFailed", ErrorKind.CONFIGURATION)


def test_what_failed_before_this_process_is_known_from_its_event(
    api: ApiServer, karpenter: PlayedKarpenter, backend: KarpenterBackend
) -> None:
    """The process was killed before the answer of its order."""
    karpenter.answer = lambda _: f"{SHORTAGE}: {SHORT}"
    asked = order(A)
    backend.order(asked)
    karpenter.advance(0.5)
    after = karpenter.open(settings_for(A, B))
    assert after.list_instances().instances == ()
    after.order(asked)
    failed = only(after)
    assert failed.error is not None
    assert failed.error.code == SHORTAGE
    assert not [path for path in api.objects if path.startswith(NODE_CLAIMS)]


def test_a_list_is_as_of_the_first_that_the_watch_lacks(karpenter: PlayedKarpenter, backend: KarpenterBackend) -> None:
    karpenter.behind_seconds = 3
    asked_at = karpenter.clock()
    backend.order(order(A))
    karpenter.advance(1)
    karpenter.advance(1)
    assert backend.list_instances().as_of_seconds == asked_at
    karpenter.advance(2)
    assert backend.list_instances().as_of_seconds == karpenter.clock()


def test_what_the_watch_never_shows_is_asked_for_by_name(
    api: ApiServer, karpenter: PlayedKarpenter, backend: KarpenterBackend
) -> None:
    """A list between may have missed both its creation and its end."""
    backend.order(order(A, B))
    api.remove(f"{NODE_CLAIMS}/{name_of('0123456789ab-b-1')}")
    api.unseen.clear()
    karpenter.running = False
    karpenter.advance(UNSEEN_SECONDS)
    there, gone = backend.list_instances().instances
    assert (there.node_group, there.error, gone.node_group) == ("a", None, "b")
    karpenter.advance(REASON_SECONDS)
    assert backend.list_instances().instances[1].error is not None


def test_a_list_of_the_watch_lets_nothing_flicker(karpenter: PlayedKarpenter, backend: KarpenterBackend) -> None:
    backend.order(order(A, each=3))
    karpenter.advance(2)
    before = backend.list_instances().instances
    karpenter.relist()
    assert backend.list_instances().instances == before


def test_what_the_api_server_refuses_is_misconfigured(api: ApiServer, backend: KarpenterBackend) -> None:
    api.fault = lambda request: Fault.REFUSED if request.method == "POST" else Fault.NONE
    with pytest.raises(errors.OrderMisconfigured, match="a webhook denied the request") as refused:
        backend.order(order(A))
    assert refused.value.node_groups == ("a",)
    api.fault = lambda _: Fault.NONE
    assert backend.list_instances().instances == ()


def test_before_everything_is_listed_nothing_is_known(api: ApiServer) -> None:
    backend = PlayedKarpenter(api, FakeClock()).open(settings_for(A))
    for informer in backend._store.informers:
        informer.synced = False
    with pytest.raises(errors.Unavailable, match="not listed yet"):
        backend.list_instances()


# ---- NodePools


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"limits": {"cpu": 1000}}, "spec.limits: found {'cpu': 1000}, expected cpu \"0\""),
        ({"limits": {}}, 'spec.limits: found none, expected cpu "0"'),
        ({"disruption": {"consolidateAfter": "30s", "budgets": [{"nodes": "0"}]}}, 'found 30s, expected "Never"'),
        ({"disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "10%"}]}}, 'expected one of nodes "0"'),
        (
            {"disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0", "reasons": ["Empty"]}]}},
            'expected one of nodes "0" at all times',
        ),
        (
            {
                "disruption": {
                    "consolidateAfter": "Never",
                    "budgets": [{"nodes": "0", "schedule": "@daily", "duration": "1h"}],
                }
            },
            'expected one of nodes "0" at all times',
        ),
        ({"replicas": 3}, "spec.replicas: found 3, a static NodePool"),
    ],
)
def test_a_node_pool_that_would_fight_is_refused_with_what_to_change(
    api: ApiServer, tmp_path: Path, spec: dict[str, Any], found: str
) -> None:
    node_pool(api, "pool", **{**FROZEN, **spec})
    node_pool(api, "nobodys", limits={})
    with pytest.raises(errors.InvalidConfiguration) as refused:
        open_backend(settings_for(A, B), BackendContext(tmp_path, FakeClock(), api.client()))
    assert refused.value.problems[0].startswith('NodePool "pool": ')
    assert found in refused.value.problems[0]
    assert len(refused.value.problems) == 2  # the last one names the guide


def test_frozen_node_pools_are_left_alone(karpenter: PlayedKarpenter) -> None:
    node_pool(karpenter.api, "pool", **FROZEN)
    node_pool(karpenter.api, "other", limits={"cpu": "0", "memory": "1Ti"}, disruption=FROZEN["disruption"])
    backend = karpenter.open(settings_for(A, B))
    assert backend.problem is None
    backend.order(order(A, B))


def test_while_a_node_pool_is_thawed_nothing_of_its_name_is_ordered(
    karpenter: PlayedKarpenter, backend: KarpenterBackend
) -> None:
    node_pool(karpenter.api, "pool", **FROZEN)
    karpenter.deliver()
    assert backend.problem is None
    node_pool(karpenter.api, "pool", limits={"cpu": 4})
    karpenter.deliver()
    assert backend.problem is not None
    assert 'NodePool "pool": spec.limits' in backend.problem
    with pytest.raises(errors.OrderMisconfigured) as refused:
        backend.order(order(A, B))
    assert refused.value.node_groups == ("a",)
    backend.order(order(B))
    karpenter.api.remove(f"{NODE_POOLS}/pool")
    karpenter.deliver()
    assert backend.problem is None


def test_parameters_of_a_group_that_left_the_configuration_are_missing(backend: KarpenterBackend) -> None:
    with pytest.raises(errors.OrderMisconfigured, match="no longer configured"):
        backend.order(order(group("retired")))


def test_defaults_of_parameters_are_the_documented_ones() -> None:
    assert Parameters(settings_for(A).parameters["a"].node_class).termination_grace_period_seconds == 600
