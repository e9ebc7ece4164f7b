"""No object, and no number of them in one namespace, makes the view work longer than its size warrants. What it costs
is counted in steps, at one size and at twice that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core import caps, pods
from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.pods import pod_spec
from cagrpc.api.core.selectors import NAMESPACE_NAME, PodIdentity, SelectorsByLabel
from cagrpc.api.encoding.messages import message_to_dict
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view import shares
from cagrpc.cluster.view.classes import SelectingTerms
from cagrpc.cluster.view.context import NAMESPACES
from cagrpc.cluster.view.expected import MOST_LEVELS, MOST_WITH_CLAIMS, MOST_WORKLOADS
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, Requirement
from solver.model.eligibility import selects
from tests.support.controllers.cluster_objects import REPLICA_SETS, STATEFUL_SETS, Fed, node, pod, remembered
from tests.support.namespaces import Namespaces
from tests.support.steps import steps

QUOTAS = "/api/v1/resourcequotas"

MOST_TIMES = 2.3
"""As much work for twice the size,"""
MOST_STEPS_OF_AN_EVENT = 150_000
"""and at most so many steps for one event: these take 50 ms (`docs/threat-model.md`)."""


def grows(work: Callable[[int], int], size: int) -> None:
    """Assert that work for this size, and for twice as much, is as much as that."""
    once, twice = work(size), work(2 * size)
    assert twice <= MOST_TIMES * once + 1_000, f"{twice / once:.1f} times as many steps for twice the size"


def workload(
    name: str,
    replicas: int = 2,
    *,
    owner: str = "",
    kind: Any = kubernetes_pb2.ReplicaSet,
    namespace: str = "default",
    **spec: Any,
) -> Any:
    template = kubernetes_pb2.PodTemplateSpec(spec=pod().spec).SerializeToString()
    metadata = kubernetes_pb2.ObjectMeta(name=name, namespace=namespace)
    if owner:
        metadata.ownerReferences.add(kind=kind.__name__, name=owner, controller=True)
    return kind(metadata=metadata, spec={"replicas": replicas, "template": template, **spec})


def quota(used: int, hard: int = 100_000, name: str = "q") -> dict[str, Any]:
    status = {"hard": {"pods": str(hard)}, "used": {"pods": str(used)}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {}, "status": status}


def expected(fed: Fed) -> int:
    return fed.model.arrivals().expected


# ---- quotas


def below_a_quota(workloads: int) -> Fed:
    fed = Fed(expects=True)
    fed.put(quota(0), path=QUOTAS)
    fed.put(*(workload(f"r{number}") for number in range(workloads)), path=REPLICA_SETS)
    return fed


def test_a_quotas_status_costs_nothing_at_once_and_then_once_for_each_workload_below() -> None:
    feds: list[Fed] = []

    def change(workloads: int) -> int:
        feds.append(below_a_quota(workloads))
        at_once = steps(lambda: feds[-1].put(quota(1), quota(2), quota(3), path=QUOTAS))
        assert at_once < 2_000
        return steps(lambda: expected(feds[-1]))

    grows(change, 100)
    assert [expected(each) for each in feds] == [200, 400]


def test_the_workloads_of_a_quota_cost_as_much_each_however_many_there_are() -> None:
    grows(lambda workloads: steps(lambda: below_a_quota(workloads)), 100)


def test_a_pod_below_a_quota_costs_the_same_however_many_workloads_are() -> None:
    def come(workloads: int) -> int:
        fed = below_a_quota(workloads)
        return steps(lambda: fed.put(pod("x", owner="ReplicaSet", owner_name="r1")))

    assert come(400) <= 1.2 * come(100)


def test_what_all_quotas_of_a_namespace_leave_is_shared_by_its_workloads() -> None:
    fed = below_a_quota(10)
    fed.put(quota(0, hard=7, name="smaller"), path=QUOTAS)
    assert expected(fed) == 7
    fed.drop(*(workload(f"r{number}") for number in range(9)), path=REPLICA_SETS)
    assert expected(fed) <= 2
    fed.drop(quota(0, name="smaller"), path=QUOTAS)
    fed.put(workload("more", 9), path=REPLICA_SETS)
    assert expected(fed) == 11


# ---- owners


def chain(length: int, replicas: int = 2) -> list[Any]:
    """Return workloads each of which is owned by the next."""
    return [workload(f"x{at:04d}", replicas, owner=f"x{at + 1:04d}") for at in range(length)]


def test_workloads_in_a_chain_cost_as_much_each_however_long_it_is() -> None:
    def come(length: int) -> int:
        fed = Fed(expects=True)

        def work() -> None:
            fed.put(*chain(length), path=REPLICA_SETS)
            fed.put(*(pod(f"p{at}", owner="ReplicaSet", owner_name=f"x{at:04d}") for at in range(length)))
            expected(fed)

        return steps(work)

    grows(come, 100)


def test_owners_are_followed_so_far_and_what_is_deeper_is_planned_once_it_exists() -> None:
    fed = Fed(expects=True)
    fed.put(*chain(MOST_LEVELS - 2), path=REPLICA_SETS)  # and the one that owns the last, which is not there
    assert expected(fed) == 2 * (MOST_LEVELS - 2)
    fed.put(*chain(3 * MOST_LEVELS), path=REPLICA_SETS)
    assert expected(fed) == 2 * (MOST_LEVELS - 1)
    fed.put(pod("p", owner="ReplicaSet", owner_name="x0000"))
    assert fed.model.arrivals().waiting == 1
    fed.relist([], path=REPLICA_SETS)
    fed.relist([])
    assert expected(fed) == 0
    assert not any(fed.leftovers())


@pytest.mark.parametrize("first", [0, 1])
def test_a_chain_that_becomes_shorter_is_followed_from_where_it_begins_then(first: int) -> None:
    fed, length = Fed(expects=True), 2 * MOST_LEVELS
    workloads = chain(length)
    for each in workloads if first else reversed(workloads):
        fed.put(each, path=REPLICA_SETS)
    fed.put(workload(f"x{MOST_LEVELS - 1:04d}"), path=REPLICA_SETS)  # nobody owns it any more
    assert expected(fed) == 2 * MOST_LEVELS + 2 * (MOST_LEVELS - 1)


def owned_by_one(workloads: int, replicas: int = 2, owner: str = "top") -> list[Any]:
    return [workload(f"{owner}-{number}", replicas, owner=owner) for number in range(workloads)]


def test_workloads_that_one_owns_cost_as_much_each_however_many_there_are() -> None:
    def come(workloads: int) -> int:
        fed = Fed(expects=True)

        def work() -> None:
            fed.put(*owned_by_one(workloads), path=REPLICA_SETS)
            expected(fed)
            fed.put(*(pod(f"p{at}", owner="ReplicaSet", owner_name=f"top-{at}") for at in range(workloads)))
            assert expected(fed) == workloads
            fed.relist([])

        return steps(work)

    grows(come, 100)


def test_an_event_of_a_workload_costs_the_same_however_many_its_owner_has() -> None:
    def longest(workloads: int) -> int:
        fed = Fed(expects=True)
        fed.put(*owned_by_one(workloads), path=REPLICA_SETS)
        expected(fed)
        young = pod("young", created=200, owner="ReplicaSet", owner_name="top-1")
        resized = pod("young", cpu="2", created=200, owner="ReplicaSet", owner_name="top-1")
        taken = [steps(partial(fed.put, each)) for each in (young, resized)]
        taken.append(steps(lambda: fed.put(workload("top-2", 3, owner="top"), path=REPLICA_SETS)))
        taken.append(steps(lambda: fed.drop(resized)))
        assert expected(fed) == 2 * workloads + 1
        return max(taken)

    longest(10)  # quantities are parsed once
    assert longest(400) <= longest(100) + 20


def test_how_long_what_is_due_keeps_the_lock_does_not_depend_on_how_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(expects=True)
    for number in range(4):
        fed.put(*owned_by_one(MOST_WORKLOADS // 2, owner=f"o{number}"), path=REPLICA_SETS)
    taken: list[int] = []
    read_again = fed.model._storage.read_again

    def counted(most: int) -> bool:
        found: list[bool] = []
        taken.append(steps(lambda: found.append(read_again(most))))
        return found[0]

    monkeypatch.setattr(fed.model._storage, "read_again", counted)
    assert expected(fed) == 4 * MOST_WORKLOADS
    assert max(taken) < MOST_STEPS_OF_AN_EVENT
    assert sum(taken) > 2 * max(taken)


@pytest.mark.parametrize("more", [{}, {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}])
def test_a_workload_that_owns_many_costs_the_same_for_each_beyond_a_bound(more: dict[str, Any]) -> None:
    fed = Fed(expects=True)
    of = kubernetes_pb2.PodTemplateSpec(spec=pod(**more).spec).SerializeToString()
    owned = owned_by_one(MOST_WORKLOADS + 500)
    for each in owned:
        each.spec.template = of
    fed.put(*owned[:-1], path=REPLICA_SETS)
    expected(fed)
    fed.put(owned[-1], path=REPLICA_SETS)
    assert steps(fed.model.arrivals) < MOST_STEPS_OF_AN_EVENT
    assert expected(fed) == 2 * (MOST_WITH_CLAIMS if more else MOST_WORKLOADS - 1)


def test_of_a_stateful_set_with_claims_few_pods_are_expected_at_a_time() -> None:
    fed = Fed(expects=True)
    claims = [kubernetes_pb2.PersistentVolumeClaimTemplate(metadata={"name": "data"})]
    many: dict[str, Any] = {"podManagementPolicy": "Parallel", "volumeClaimTemplates": claims}
    whole = workload("db", 2**31 - 1, kind=kubernetes_pb2.StatefulSet, **many)
    fed.put(whole, path=STATEFUL_SETS)
    assert steps(fed.model.arrivals) < MOST_STEPS_OF_AN_EVENT
    assert expected(fed) == MOST_WITH_CLAIMS


# ---- namespaces


def namespace(name: str, **labels: str) -> kubernetes_pb2.Namespace:
    return kubernetes_pb2.Namespace(metadata={"name": name, "labels": labels})


def apart(name: str, *selectors: dict[str, Any], **labels: str) -> Any:
    """Return a pod with so many anti-affinity terms, which select namespaces."""
    terms = [{"topologyKey": "a", "namespaceSelector": each, "labelSelector": {"matchLabels": labels or {"a": "b"}}}
             for each in selectors]  # fmt: skip
    return pod(name, affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


def condition(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def without(label: str) -> dict[str, Any]:
    return condition(label, "DoesNotExist")


def selecting_namespaces(count: int) -> Fed:
    fed = Fed()
    fed.relist([namespace(f"ns{number}") for number in range(count)], NAMESPACES)
    fed.put(apart("b", *(without(f"k{number}") for number in range(count))))
    fed.state()
    return fed


def test_terms_that_select_namespaces_cost_no_product_of_the_two() -> None:
    grows(lambda count: steps(lambda: selecting_namespaces(count)), 50)


def test_one_namespaces_labels_cost_what_is_known_of_that_alone() -> None:
    def change(count: int) -> int:
        fed = selecting_namespaces(count)

        def labelled(**labels: str) -> None:
            fed.put(namespace("ns0", **labels), path=NAMESPACES)
            fed.state()

        assert steps(lambda: labelled(x="1")) < 1_000 + 10 * count
        return steps(lambda: labelled(k0="1"))

    grows(change, 50)


_KEYS = st.sampled_from(["a", "b", NAMESPACE_NAME])
_CONDITION = st.one_of(
    st.builds(lambda key, values: condition(key, "In", *values), _KEYS, st.lists(st.sampled_from("xyz"), min_size=1)),
    st.builds(lambda key, values: condition(key, "NotIn", *values), _KEYS, st.lists(st.sampled_from("xy"), min_size=1)),
    st.builds(condition, _KEYS, st.sampled_from(["Exists", "DoesNotExist"])),
)
_SELECTOR = st.lists(_CONDITION, min_size=1, max_size=3).map(
    lambda found: {"matchExpressions": [each for one in found for each in one["matchExpressions"]]}
)
_LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xyz"))


@given(
    st.lists(_SELECTOR, min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from("xyz"), st.none() | _LABELS)),
    st.booleans(),
)
def test_what_is_known_of_namespaces_is_the_same_as_if_it_were_read_anew(
    selectors: list[dict[str, Any]], changes: list[tuple[str, dict[str, str] | None]], listed: bool
) -> None:
    followed, known = Fed(), dict[str, dict[str, str]]()
    followed.put(apart("p", *selectors, a="x"))
    if listed:
        followed.relist([], NAMESPACES)
    for name, labels in changes:
        if labels is None:
            followed.drop(namespace(name), path=NAMESPACES)
            known.pop(name, None)
        else:
            followed.put(namespace(name, **labels), path=NAMESPACES)
            known[name] = labels
        (waiting,) = followed.state().waiting
        anew = Namespaces(known, frozenset(known) if listed else None)
        spec = message_to_dict(apart("p", *selectors, a="x").spec)
        terms = pod_spec(spec, "", [], Surroundings(namespaces=anew)).pod_anti_affinity
        assert waiting.pod_set.spec.pod_anti_affinity == terms


# ---- terms


def keeping_apart(name: str, *selectors: dict[str, Any], labels: dict[str, str] | None = None, **more: Any) -> Any:
    """Return a pod with so many anti-affinity terms."""
    terms = [{"topologyKey": "a", "labelSelector": each} for each in selectors]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return pod(name, labels=labels or {}, affinity=affinity, **more)


def nothing(number: int) -> dict[str, Any]:
    """Return a selector that matches no pod, and does not look so."""
    return both(condition("k", "Exists"), condition("k", "NotIn", *(f"{each}" for each in range(9)), f"x{number}"))


def both(*selectors: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": [condition for each in selectors for condition in each["matchExpressions"]]}


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param(lambda at: condition("k", "NotIn", f"v{at}"), id="every pod"),
        pytest.param(nothing, id="no pod"),
        pytest.param(lambda at: condition("k", "In", f"v{at}"), id="a label that nobody has"),
        pytest.param(lambda at: both(condition("k", "Exists"), without(f"x{at}")), id="whoever has a label"),
    ],
)
@pytest.mark.parametrize("node_name", ["", "n1"])
def test_terms_cost_no_product_with_pods_however_many_each_has(selector: Any, node_name: str) -> None:
    def come(pods: int) -> int:
        fed = Fed()
        found = [
            keeping_apart(
                f"p{number}",
                *(selector(20 * number + term) for term in range(20)),
                labels={"k": f"{number % 9}", "own": f"{number}"},
                node=node_name if number % 2 else "",
            )
            for number in range(pods)
        ]

        def work() -> None:
            fed.put(*found)
            fed.state()

        return steps(work)

    grows(come, 100)


def test_one_more_pod_with_terms_is_no_reason_to_compare_all_others_again() -> None:
    def one_more(pods: int) -> int:
        fed = Fed()
        more = [
            keeping_apart(f"p{number}", nothing(number), labels={"k": f"{number % 9}"}) for number in range(pods + 1)
        ]
        fed.put(*more[:-1])
        fed.state()
        return steps(lambda: fed.put(more[-1]))

    assert one_more(400) <= one_more(100) + 2_000


_TERM_LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xyz"))
_TERM_CONDITION = st.one_of(
    st.builds(
        lambda key, operator, values: Requirement(key, operator, tuple(values)),
        st.sampled_from("ab"),
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.lists(st.sampled_from("xyz"), min_size=1),
    ),
    st.builds(Requirement, st.sampled_from("ab"), st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST])),
)
_TERM = st.builds(
    lambda conditions, namespaces: PodAffinityTerm("zone", PodSelector(conditions, namespaces)),
    st.none() | st.lists(_TERM_CONDITION, max_size=3).map(tuple),
    st.none() | st.lists(st.sampled_from("mn"), unique=True).map(lambda found: tuple(sorted(found))),
)


class _Class:
    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.identity = PodIdentity(namespace, labels)


@given(st.lists(st.one_of(_TERM, st.builds(_Class, st.sampled_from("mn"), _TERM_LABELS)), max_size=12), st.data())
def test_the_terms_that_select_a_pod_that_waits_are_these(events: list[Any], data: st.DataObject) -> None:
    found: SelectingTerms[_Class] = SelectingTerms()
    there: list[Any] = []
    for each in events:
        if each in there:
            continue
        there.append(each)
        (found.begin if isinstance(each, _Class) else found.add)(each)
        if data.draw(st.booleans()):
            gone = there.pop(data.draw(st.integers(0, len(there) - 1)))
            (found.end if isinstance(gone, _Class) else found.remove)(gone)
        classes = [one.identity for one in there if isinstance(one, _Class)]
        terms = {one for one in there if isinstance(one, PodAffinityTerm)}
        selecting = {one for one in terms if any(selects(one.selector, who.namespace, who.labels) for who in classes)}
        assert set(found.terms()) == selecting
        index = SelectorsByLabel({one.selector for one in terms})
        for who in classes:
            matched = {one.selector for one in terms if selects(one.selector, who.namespace, who.labels)}
            assert {one for one in index.may_match(who) if selects(one, who.namespace, who.labels)} == matched
            assert index.may_be_matched(who) is bool(matched)
    for each in there:
        (found.end if isinstance(each, _Class) else found.remove)(each)
    assert not any(remembered(found))


# ---- caps

_LABEL = {"matchLabels": {"a": "b"}}


def _terms_of(kind: str, *terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def _port(number: int) -> dict[str, Any]:
    return {"name": f"c{number}", "ports": [{"hostPort": number + 1, "protocol": "TCP"}]}


_TERM_OF_ALL = {"topologyKey": HOSTNAME, "labelSelector": _LABEL}
_SPREAD = {"topologyKey": "a", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": _LABEL}
_IN = {"key": "a", "operator": "In"}
CAPPED: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    "terms of pod affinity": (caps.MOST_TERMS, lambda count: _terms_of("podAffinity", *[_TERM_OF_ALL] * count)),
    "topology spread": (caps.MOST_SPREADS, lambda count: {"topologySpreadConstraints": [_SPREAD] * count}),
    "terms of node affinity": (
        caps.MOST_NODE_TERMS,
        lambda count: {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}] * count}}}},
    ),
    "conditions on labels": (
        caps.MOST_CONDITIONS, lambda count: {"nodeSelector": {f"k{number}": "v" for number in range(count)}}
    ),
    "values of conditions": (
        caps.MOST_VALUES,
        lambda count: _terms_of("podAntiAffinity", {"topologyKey": "a", "labelSelector": {"matchExpressions": [
            {**_IN, "values": [f"{number}" for number in range(count)]}]}}),
    ),
    "tolerations": (
        caps.MOST_TOLERATIONS, lambda count: {"tolerations": [{"key": f"k{number}"} for number in range(count)]}
    ),
    "host ports": (caps.MOST_HOST_PORTS, lambda count: {"containers": [_port(number) for number in range(count)]}),
    "kinds of resources": (
        caps.MOST_RESOURCES,
        lambda count: {"containers": [{"name": "c", "resources": {"requests": {
            f"example.com/r{number}": {"string": "1"} for number in range(1, count)}}}]},
    ),
    "claims on devices": (
        caps.MOST_CLAIMS,
        lambda count: {"resourceClaims": [{"name": f"c{number}", "resourceClaimName": "c"} for number in range(count)]},
    ),
    "volumes": (
        caps.MOST_VOLUMES,
        lambda count: {"volumes": [{"name": f"v{at}", "volumeSource": {"emptyDir": {}}} for at in range(count)]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CAPPED)
def test_a_pod_that_has_more_of_anything_than_a_sane_one_a_hundred_times_over_is_left_out_with_that_reason(
    what: str,
) -> None:
    most, having = CAPPED[what]
    fed = Fed()
    fed.put(pod("most", cpu="0", **having(most)), pod("more", cpu="0", **having(most + 1)), pod("other"))
    found = {name.partition("/")[2]: each.pod_set.spec for each in fed.state().waiting for name in [each.pod_set.name]}
    assert f"{most + 1:,} {what}" in found["more"].unschedulable
    assert not found["other"].unschedulable
    assert what not in found["most"].unschedulable


def test_a_pod_with_more_labels_than_planned_with_is_left_out_as_well() -> None:
    fed = Fed()
    fed.put(pod("more", labels={f"l{number}": "x" for number in range(caps.MOST_LABELS + 1)}))
    (waiting,) = fed.state().waiting
    assert "labels" in waiting.pod_set.spec.unschedulable


def test_a_pod_that_is_left_out_and_runs_takes_what_it_requests_and_keeps_away_whom_it_keeps_away() -> None:
    fed = Fed()
    fed.nodes(node("n1", cpu="8"))
    here = [_TERM_OF_ALL] * (caps.MOST_TERMS + 1)
    elsewhere = {**_TERM_OF_ALL, "topologyKey": "zone", "namespaceSelector": {}}
    fed.put(
        pod("bound", node="n1", cpu="3", **_terms_of("podAntiAffinity", *here, elsewhere)),
        pod("p", labels=_LABEL["matchLabels"]),
    )
    (shown,) = fed.state().nodes
    assert shown.node.free["cpu"] == 5_000
    (running,) = shown.node.running
    assert running.spec.pod_anti_affinity == (
        PodAffinityTerm("zone", PodSelector((), None)),
        PodAffinityTerm(HOSTNAME, PodSelector((), ("default",))),
    )


def test_a_pod_whose_terms_come_to_too_many_namespaces_is_left_out_until_there_are_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods, "MOST_NAMESPACES", 20)
    fed = Fed()
    fed.relist([namespace(f"ns{number}") for number in range(11)], NAMESPACES)
    named = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]}
    fed.put(apart("b", named, {**named, "matchLabels": {}}))
    (waiting,) = fed.state().waiting
    assert "22 namespaces" in waiting.pod_set.spec.unschedulable
    fed.drop(namespace("ns0"), path=NAMESPACES)
    (waiting,) = fed.state().waiting
    assert not waiting.pod_set.spec.unschedulable


# ---- the share of a namespace


def of_tenant(name: str, namespace: str = "tenant", **more: Any) -> Any:
    return keeping_apart(name, condition("k", "NotIn", f"v-{name}"), namespace=namespace, **more)


WEIGHT = 5
"""Of one such pod: a selector with one namespace, one condition and one value, and the term."""


def reasons(fed: Fed) -> dict[str, str]:
    """Return why pods are left out, by name."""
    found = fed.state().waiting
    return {ref.name: each.pod_set.spec.unschedulable for each in found for ref in each.pods}


def test_who_uses_up_the_share_of_its_namespace_leaves_its_own_pods_out_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "MOST_WEIGHT", 3 * WEIGHT)
    fed = Fed()
    fed.put(*(of_tenant(f"p{number}") for number in range(5)))
    fed.put(of_tenant("other", "honest"), pod("plain", namespace="tenant"))
    found = reasons(fed)
    assert {name for name, reason in found.items() if "its namespace" in reason} == {"p3", "p4"}
    used, left_out = fed.model.shares()
    assert (used["constraints"], left_out) == (1.0, 2)
    fed.drop(of_tenant("p0"))
    found = reasons(fed)
    assert {name for name, reason in found.items() if reason} == {"p4"}, "there is room for one more"
    fed.drop(of_tenant("p1"), of_tenant("p2"))
    assert not any(reasons(fed).values())
    assert fed.model.shares()[1] == 0
    fed.relist([])
    assert not any(fed.leftovers())


def test_what_runs_beyond_the_share_keeps_away_whom_it_keeps_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MOST_WEIGHT", 0)
    fed = Fed()
    fed.nodes(node("n1", cpu="8"))
    fed.put(of_tenant("bound", node="n1", cpu="3"), pod("p", namespace="tenant"))
    (shown,) = fed.state().nodes
    assert shown.node.free["cpu"] == 5_000
    (running,) = shown.node.running
    assert running.spec.pod_anti_affinity == (PodAffinityTerm("a", PodSelector((), ("tenant",))),)


def test_pods_beyond_the_share_cost_as_much_each_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MOST_WEIGHT", 50 * WEIGHT)

    def come(pods: int) -> int:
        fed = Fed()
        found = [of_tenant(f"p{number}", labels={"k": f"{number}"}) for number in range(pods)]

        def work() -> None:
            fed.put(*found)
            fed.state()
            for each in found[:20]:
                fed.drop(each)
                fed.state()

        return steps(work)

    grows(come, 200)
