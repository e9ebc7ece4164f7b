"""Constraints between pods, host ports and preferences: each field, from manifests and from protobuf alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.autoscaler import expander
from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.pods import NOWHERE, PodDecoder, pod_spec
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.gen import expander_pb2 as pb
from solver.model import (
    HOSTNAME,
    HostPort,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    PreferredNodes,
    PreferredPods,
    Requirement,
    TopologySpread,
    WhenUnsatisfiable,
)
from tests.support.described import read
from tests.support.examples import examples
from tests.support.messages import pod_bytes
from tests.support.namespaces import Namespaces

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"
LABELS = {"app": "web", "pod-template-hash": "abc"}
WEB = Requirement("app", Operator.IN, ("web",))
OF_WEB = PodSelector((WEB,), ("shop",))
SELECT_WEB = {"matchLabels": {"app": "web"}}


def by_manifests(folder: Path, *pods: dict[str, Any]) -> list[PodSpec]:
    path = folder / "pods.json"
    path.write_text(json.dumps({"kind": "List", "items": [{"kind": "Pod", **pod} for pod in pods]}))
    found = read([path]).pods
    return [found[f"{each['metadata']['namespace']}/{each['metadata']['name']}"].spec for each in pods]


def by_protobuf(*pods: dict[str, Any]) -> list[PodSpec]:
    option = pb.Option(nodeGroupId="g", nodeCount=1, podBytes=map(pod_bytes, pods))
    request = expander.decode(pb.BestOptionsRequest(options=[option]).SerializeToString(), lambda: False)
    assert not request.unreadable
    return [pod.spec for pod in request.options[0].pods]


def pod(name: str = "p", namespace: str = "shop", labels: dict[str, str] = LABELS, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"name": name, "namespace": namespace, "uid": name, "labels": labels}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def both(folder: Path, *pods: dict[str, Any]) -> list[PodSpec]:
    specs = by_manifests(folder, *pods)
    assert by_protobuf(*pods) == specs
    return specs


def near(*terms: dict[str, Any], anti: bool = False, field: str = REQUIRED) -> dict[str, Any]:
    return {"podAntiAffinity" if anti else "podAffinity": {field: list(terms)}}


def selected(*conditions: Requirement, namespaces: Sequence[str] | None = ("shop",)) -> PodSelector:
    return PodSelector(conditions, None if namespaces is None else tuple(namespaces))


def is_in(key: str, *values: str) -> Requirement:
    return Requirement(key, Operator.IN, values)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("term", "selector"),
    [
        pytest.param({"labelSelector": SELECT_WEB}, OF_WEB, id="the pod's own namespace"),
        pytest.param({}, PodSelector(None, ("shop",)), id="no selector matches none"),
        pytest.param({"labelSelector": {}}, PodSelector((), ("shop",)), id="an empty one matches all"),
        pytest.param(
            {"labelSelector": {"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
                expression("tier", "NotIn", "y", "x"), expression("c", "Exists"), expression("d", "DoesNotExist"),
                expression("a", "In", "1"),
            ]}},
            selected(is_in("a", "1"), is_in("b", "2"), Requirement("c", Operator.EXISTS),
                     Requirement("d", Operator.DOES_NOT_EXIST), Requirement("tier", Operator.NOT_IN, ("x", "y"))),
            id="every operator, each condition once",
        ),
        pytest.param({"labelSelector": {}, "namespaces": ["b", "a", "b"]}, PodSelector((), ("a", "b")),
                     id="namespaces by name"),
        pytest.param({"labelSelector": {}, "namespaceSelector": {}}, PodSelector((), None), id="all namespaces"),
        pytest.param({"labelSelector": {}, "namespaces": ["a"], "namespaceSelector": {}}, PodSelector((), None),
                     id="all and one more"),
        pytest.param(
            {"labelSelector": {}, "namespaces": ["a"],
             "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}},
            PodSelector((), ("a", "b")), id="namespaces by the label that is their name",
        ),
        pytest.param({"labelSelector": SELECT_WEB, "matchLabelKeys": ["pod-template-hash", "absent"]},
                     selected(WEB, is_in("pod-template-hash", "abc")), id="the pod's own value"),
        pytest.param({"labelSelector": {}, "mismatchLabelKeys": ["app"]},
                     selected(Requirement("app", Operator.NOT_IN, ("web",))), id="any value but the pod's own"),
        pytest.param(
            {"labelSelector": {"matchExpressions": [expression("app", "In", "web")]}, "matchLabelKeys": ["app"]},
            OF_WEB, id="the API server has said so already",
        ),
        pytest.param({"matchLabelKeys": ["app"]}, PodSelector(None, ("shop",)), id="own labels without a selector"),
    ],
)  # fmt: skip
def test_terms_of_affinity_between_pods(tmp_path: Path, term: dict[str, Any], selector: PodSelector) -> None:
    term = {"topologyKey": ZONE, **term}
    expected = PodAffinityTerm(ZONE, selector)
    (spec,) = both(tmp_path, pod(affinity=near(term)))
    assert (spec.pod_affinity, spec.pod_anti_affinity) == ((expected,), ())
    (spec,) = both(tmp_path, pod(affinity=near(term, anti=True)))
    assert (spec.pod_affinity, spec.pod_anti_affinity) == ((), (expected,))
    (spec,) = both(tmp_path, pod(affinity=near({"weight": 7, "podAffinityTerm": term}, field=PREFERRED)))
    assert spec.preferred_pods == (PreferredPods(7, expected),)


def test_preferences_between_pods_are_told_by_kind_in_the_order_given(tmp_path: Path) -> None:
    def weighted(weight: int, key: str) -> dict[str, Any]:
        return {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": SELECT_WEB}}

    affinity = {
        **near(weighted(1, "a"), weighted(100, "b"), field=PREFERRED),
        **near(weighted(50, HOSTNAME), anti=True, field=PREFERRED),
    }
    (spec,) = both(tmp_path, pod(affinity=affinity))
    assert spec.preferred_pods == (
        PreferredPods(1, PodAffinityTerm("a", OF_WEB)),
        PreferredPods(100, PodAffinityTerm("b", OF_WEB)),
        PreferredPods(50, PodAffinityTerm(HOSTNAME, OF_WEB), anti=True),
    )
    assert (spec.pod_affinity, spec.pod_anti_affinity) == ((), ())


def test_preferred_nodes_and_a_term_that_prefers_every_node(tmp_path: Path) -> None:
    term = {"matchExpressions": [expression("disk", "In", "ssd"), expression("cores", "Gt", "4")],
            "matchFields": [expression("metadata.name", "In", "n1")]}  # fmt: skip
    preferred = [{"weight": 3, "preference": term}, {"weight": 5, "preference": {}}]
    (spec,) = both(tmp_path, pod(affinity={"nodeAffinity": {PREFERRED: preferred}}))
    conditions = (is_in("disk", "ssd"), Requirement("cores", Operator.GT, ("4",)))
    assert spec.preferred_nodes == (PreferredNodes(3, NodeSelectorTerm(conditions, (is_in("metadata.name", "n1"),))),)
    assert spec.affinity is None


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, {}, id="defaults"),
        pytest.param({"whenUnsatisfiable": "ScheduleAnyway"},
                     {"when_unsatisfiable": WhenUnsatisfiable.SCHEDULE_ANYWAY}, id="a preference"),
        pytest.param({"minDomains": 3}, {"min_domains": 3}, id="minDomains"),
        pytest.param({"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"},
                     {"honor_node_affinity": False, "honor_node_taints": True}, id="policies"),
        pytest.param({"nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"}, {}, id="the defaults by name"),
        pytest.param({"labelSelector": None}, {"selector": PodSelector(None, ())}, id="no selector"),
        pytest.param({"labelSelector": {}}, {"selector": PodSelector(None, None)}, id="an empty selector"),
        pytest.param({"matchLabelKeys": ["pod-template-hash", "absent"]},
                     {"selector": selected(WEB, is_in("pod-template-hash", "abc"))}, id="matchLabelKeys"),
    ],
)  # fmt: skip
def test_topology_spread(tmp_path: Path, more: dict[str, Any], expected: dict[str, Any]) -> None:
    constraint = {"maxSkew": 2, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECT_WEB}
    (spec,) = both(tmp_path, pod(topologySpreadConstraints=[{**constraint, **more}]))
    usual: dict[str, Any] = {"topology_key": ZONE, "max_skew": 2, "selector": OF_WEB}
    assert spec.topology_spread == (TopologySpread(**{**usual, **expected}),)


def _with_ports(*ports: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "c", "ports": list(ports), **more}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [_with_ports({"containerPort": 80, "hostPort": 8080})]}, [HostPort(8080)],
                     id="TCP and every address by default"),
        pytest.param({"containers": [_with_ports({"containerPort": 80})]}, [], id="a port of the pod's own"),
        pytest.param({"containers": [_with_ports({"containerPort": 53, "hostPort": 53, "protocol": "UDP",
                                                  "hostIP": "10.0.0.1"})]},
                     [HostPort(53, "UDP", "10.0.0.1")], id="protocol and address"),
        pytest.param({"containers": [_with_ports({"hostPort": 2, "hostIP": "0.0.0.0"}, {"hostPort": 1, "hostIP": "::"},
                                                 {"hostPort": 2})]},
                     [HostPort(1), HostPort(2)], id="all addresses by name, each port once, sorted"),
        pytest.param({"hostNetwork": True,
                      "containers": [_with_ports({"containerPort": 80}, {"containerPort": 81, "hostPort": 81})]},
                     [HostPort(80), HostPort(81)], id="on the host's network every port is the host's"),
        pytest.param({"containers": [_with_ports()], "initContainers": [
            _with_ports({"hostPort": 1}), _with_ports({"hostPort": 2}, restartPolicy="Always")]},
                     [HostPort(2)], id="of init containers only the sidecars'"),
    ],
)  # fmt: skip
def test_host_ports(tmp_path: Path, spec: dict[str, Any], expected: list[HostPort]) -> None:
    (converted,) = both(tmp_path, pod(**spec))
    assert converted.host_ports == tuple(expected)


def test_labels_and_namespaces_are_kept_as_far_as_a_selector_sees_them(tmp_path: Path) -> None:
    def replica(index: int, namespace: str = "shop", app: str = "web", **spec: Any) -> dict[str, Any]:
        own = {"app": app, "statefulset.kubernetes.io/pod-name": f"{app}-{index}"}
        return pod(f"{namespace}-{app}-{index}", namespace, own, **spec)

    nobody_looks = both(tmp_path, replica(1), replica(2), replica(1, "other"), replica(1, app="db"))
    assert nobody_looks == [PodSpec((("cpu", 1000),))] * 4

    apart = near({"topologyKey": HOSTNAME, "labelSelector": SELECT_WEB}, anti=True)
    first, second, elsewhere, other, looking = both(
        tmp_path, replica(1), replica(2), replica(1, "other"), replica(1, app="db"), replica(3, affinity=apart)
    )
    assert first == second
    assert (first.namespace, first.labels) == ("shop", (("app", "web"),))
    assert (elsewhere.namespace, elsewhere.labels) == ("", (("app", "web"),))
    assert (other.namespace, other.labels) == ("shop", ())
    assert (looking.namespace, looking.labels) == ("shop", (("app", "web"),))

    named = {"matchExpressions": [expression("statefulset.kubernetes.io/pod-name", "Exists")]}
    looks = near({"topologyKey": HOSTNAME, "labelSelector": named}, anti=True)
    first, second, _ = both(tmp_path, replica(1), replica(2), replica(3, affinity=looks))
    assert first.labels == (("statefulset.kubernetes.io/pod-name", "web-1"),)
    assert first != second


def test_equal_specs_mean_something_else_in_another_namespace_or_of_another_revision() -> None:
    spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECT_WEB,
              "matchLabelKeys": ["pod-template-hash"]}  # fmt: skip
    decoder = PodDecoder()

    def converted(namespace: str, **labels: str) -> PodSpec:
        return decoder.decode(pod_bytes(pod("p", namespace, labels, topologySpreadConstraints=[spread]))).spec

    one = converted("shop", **{"pod-template-hash": "abc", "index": "1"})
    assert converted("shop", **{"pod-template-hash": "abc", "index": "2"}) is one
    assert converted("shop", **{"pod-template-hash": "def"}) != one
    assert converted("shop") != one
    assert converted("other", **{"pod-template-hash": "abc"}) != one


def test_what_cannot_be_meant_is_told_once_each_with_its_path() -> None:
    term = {"topologyKey": ZONE, "labelSelector": SELECT_WEB}
    greater = {"topologyKey": ZONE, "labelSelector": {"matchExpressions": [expression("a", "Gt", "1")]}}
    spec: dict[str, Any] = {
        "containers": [_with_ports({"hostPort": 70000}, {"hostPort": 1, "protocol": "ICMP"},
                                   {"hostPort": 2, "hostIP": "here"}, {"hostPort": True})],
        "affinity": {
            "podAffinity": {REQUIRED: [{}, greater],
                            PREFERRED: [{"weight": 101, "podAffinityTerm": term}, {"podAffinityTerm": term}]},
            "podAntiAffinity": {REQUIRED: [{**term, "namespaces": "a"}, {**term, "matchLabelKeys": [1]}]},
            "nodeAffinity": {PREFERRED: [{"weight": 0, "preference": {}}]},
        },
        "topologySpreadConstraints": [
            {"maxSkew": 0, "whenUnsatisfiable": "Maybe", "nodeTaintsPolicy": "x"},
            {"topologyKey": ZONE, "maxSkew": 1, "minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"},
            {"topologyKey": ZONE, "maxSkew": 1, "minDomains": 0},
        ],
    }  # fmt: skip
    problems: list[str] = []
    pod_spec(spec, "spec", problems)
    ports, spread = "spec.containers[0].ports", "spec.topologySpreadConstraints"
    kinds = [f"spec.affinity.{kind}" for kind in ("podAffinity", "podAntiAffinity", "nodeAffinity")]
    starts = [
        f"{ports}[0].hostPort: 70000 is not a whole number from 0 to 65535",
        f'{ports}[1].protocol: "ICMP" is not one of TCP, UDP, SCTP',
        f'{ports}[2].hostIP: "here" is not an IP address',
        f"{ports}[3].hostPort: true is not a whole number",
        f"{kinds[0]}.{REQUIRED}[0].topologyKey: missing",
        f'{kinds[0]}.{REQUIRED}[1].labelSelector.matchExpressions[0].operator: "Gt" is not one of In, NotIn, Exists,',
        f"{kinds[0]}.{PREFERRED}[0].weight: 101 is not a whole number from 1 to 100",
        f"{kinds[0]}.{PREFERRED}[1].weight: null is not a whole number",
        f'{kinds[1]}.{REQUIRED}[0].namespaces: expected a list of texts, found "a"',
        f"{kinds[1]}.{REQUIRED}[1].matchLabelKeys: expected a list of texts",
        f"{kinds[2]}.{PREFERRED}[0].weight: 0 is not a whole number from 1 to 100",
        f"{spread}[0].topologyKey: missing",
        f"{spread}[0].maxSkew: 0 is not a whole number from 1",
        f'{spread}[0].whenUnsatisfiable: "Maybe" is not one of DoNotSchedule, ScheduleAnyway',
        f'{spread}[0].nodeTaintsPolicy: "x" is not one of Ignore, Honor',
        f"{spread}[1].minDomains: only with whenUnsatisfiable DoNotSchedule",
        f"{spread}[2].whenUnsatisfiable: null is not one of",
        f"{spread}[2].minDomains: 0 is not a whole number from 1",
    ]
    for start in starts:
        assert len([problem for problem in problems if problem.startswith(start)]) == 1, (start, problems)
    assert len(problems) == len(starts)


@pytest.mark.parametrize("part", ["affinity", "podAffinity", "podAntiAffinity", "nodeAffinity", "spread", "ports"])
def test_a_part_that_is_no_mapping_or_list_is_told_once(part: str) -> None:
    affinity = 5 if part == "affinity" else {part: 5}
    spec: dict[str, Any] = {"containers": [{"ports": 5}] if part == "ports" else [{}]}
    spec |= {"affinity": affinity} if "ffinity" in part else {}
    spec |= {"topologySpreadConstraints": 5} if part == "spread" else {}
    problems: list[str] = []
    pod_spec(spec, "spec", problems)
    assert len(problems) == 1
    assert ": expected a " in problems[0]


def test_an_odd_pod_of_the_autoscaler_is_taken_at_its_word() -> None:
    odd = pod(topologySpreadConstraints=[{"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "Soon"}])
    apart = pod("q", affinity=near({"topologyKey": HOSTNAME, "labelSelector": SELECT_WEB}, anti=True))
    option = pb.Option(nodeGroupId="g", nodeCount=1, podBytes=[pod_bytes(odd), pod_bytes(apart)])
    request = expander.decode(pb.BestOptionsRequest(options=[option]).SerializeToString(), lambda: False)
    first, second = request.options[0].pods
    assert first.spec is NOWHERE
    assert second.spec.labels == (("app", "web"),)
    assert 'spec.topologySpreadConstraints[0].whenUnsatisfiable: "Soon"' in request.unreadable


_TEAM_A = {"matchLabels": {"team": "a"}}
_NOT_SHOP = {"matchExpressions": [expression("kubernetes.io/metadata.name", "NotIn", "shop")]}


@pytest.mark.parametrize(
    ("selector", "known", "anti", "names", "noted"),
    [
        pytest.param(_TEAM_A, Namespaces(), True, None, True, id="unknown labels, to stay apart: all"),
        pytest.param(_TEAM_A, Namespaces(), False, (), True, id="unknown labels, to be near: none"),
        pytest.param(_TEAM_A, Namespaces({"x": {"team": "a"}, "y": {}}, frozenset("xy")), True, ("x",), False,
                     id="known labels"),
        pytest.param(_TEAM_A, Namespaces({"x": {"team": "a"}}, frozenset("xy")), False, ("x",), True,
                     id="labels of some"),
        pytest.param(_NOT_SHOP, Namespaces({}, frozenset(("shop", "x"))), True, None, False,
                     id="what holds without any label is every namespace's, as kube-scheduler 1.36 has it"),
        pytest.param({"matchLabels": {"kubernetes.io/metadata.name": "x", "team": "a"}}, Namespaces(), False, (), True,
                     id="a known name with unknown labels"),
    ],
)  # fmt: skip
def test_selectors_of_namespaces(
    selector: dict[str, Any], known: Namespaces, anti: bool, names: tuple[str, ...] | None, noted: bool
) -> None:
    around = Surroundings(PodIdentity("shop"), known)
    problems: list[str] = []
    term = {"topologyKey": ZONE, "labelSelector": {}, "namespaceSelector": selector}
    spec = pod_spec({"affinity": near(term, anti=anti)}, "spec", problems, around)
    (found,) = spec.pod_anti_affinity or spec.pod_affinity
    assert (found.selector.namespaces, problems) == (names, [])
    kind = "podAntiAffinity" if anti else "podAffinity"
    starts = [f"spec.affinity.{kind}.{REQUIRED}[0].namespaceSelector: the labels of namespaces are not known"]
    assert [note[: len(starts[0])] for note in around.notes] == (starts if noted else [])


_keys = st.sampled_from(["app", "tier", "rev"])
_values = st.sampled_from(["a", "b", "c"])
_labels = st.dictionaries(_keys, _values, max_size=3)
_some = st.lists(_values, min_size=1, max_size=2)
_expressions = st.one_of(
    st.builds(lambda key, operator, values: expression(key, operator, *values), _keys,
              st.sampled_from(["In", "NotIn"]), _some),
    st.builds(expression, _keys, st.sampled_from(["Exists", "DoesNotExist"])),
)  # fmt: skip
_selectors = st.fixed_dictionaries(
    {}, optional={"matchLabels": _labels, "matchExpressions": st.lists(_expressions, max_size=2)}
)
_topology = st.sampled_from([ZONE, HOSTNAME])
_own = st.lists(_keys, max_size=2)
_terms = st.fixed_dictionaries(
    {"topologyKey": _topology},
    optional={
        "labelSelector": _selectors,
        "namespaces": st.lists(st.sampled_from(["shop", "other"]), max_size=2),
        "namespaceSelector": st.sampled_from([{}, {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}]),
        "matchLabelKeys": _own,
        "mismatchLabelKeys": _own,
    },
)
_weights = st.integers(1, 100)
_between = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: st.lists(_terms, max_size=2),
        PREFERRED: st.lists(st.fixed_dictionaries({"weight": _weights, "podAffinityTerm": _terms}), max_size=2),
    },
)
_node_terms = st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(_expressions, max_size=2)})
_nodes = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: st.fixed_dictionaries({}, optional={"nodeSelectorTerms": st.lists(_node_terms, max_size=2)}),
        PREFERRED: st.lists(st.fixed_dictionaries({"weight": _weights, "preference": _node_terms}), max_size=2),
    },
)
_spreads = st.fixed_dictionaries(
    {"maxSkew": st.integers(1, 3), "topologyKey": _topology, "whenUnsatisfiable": st.just("DoNotSchedule")},
    optional={
        "labelSelector": _selectors,
        "minDomains": st.integers(1, 3),
        "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore"]),
        "nodeTaintsPolicy": st.sampled_from(["Honor", "Ignore"]),
        "matchLabelKeys": _own,
    },
) | st.fixed_dictionaries(
    {"maxSkew": st.just(1), "topologyKey": _topology, "whenUnsatisfiable": st.just("ScheduleAnyway")},
    optional={"labelSelector": _selectors},
)
_ports = st.fixed_dictionaries(
    {"containerPort": st.integers(1, 65535)},
    optional={
        "hostPort": st.integers(0, 65535),
        "protocol": st.sampled_from(["TCP", "UDP", "SCTP"]),
        "hostIP": st.sampled_from(["", "0.0.0.0", "::", "10.0.0.1"]),
    },
)
_containers = st.fixed_dictionaries(
    {"name": st.just("c"), "resources": st.fixed_dictionaries({"requests": st.just({"cpu": "100m", "memory": "1Gi"})})},
    optional={"ports": st.lists(_ports, max_size=2), "restartPolicy": st.just("Always")},
)
_pod_specs = st.fixed_dictionaries(
    {"containers": st.lists(_containers, min_size=1, max_size=2)},
    optional={
        "initContainers": st.lists(_containers, max_size=2),
        "hostNetwork": st.booleans(),
        "nodeSelector": _labels,
        "affinity": st.fixed_dictionaries(
            {}, optional={"nodeAffinity": _nodes, "podAffinity": _between, "podAntiAffinity": _between}
        ),
        "topologySpreadConstraints": st.lists(_spreads, max_size=2),
        "tolerations": st.lists(
            st.fixed_dictionaries({"operator": st.just("Exists")}, optional={"key": _keys}), max_size=1
        ),
    },
)
_pods = st.tuples(st.sampled_from(["shop", "other"]), _labels, _pod_specs)


@examples(200)
@given(st.lists(_pods, min_size=1, max_size=3))
def test_a_pod_is_the_same_as_a_manifest_and_on_the_wire(tmp_path: Path, found: list[Any]) -> None:
    pods = [pod(f"p{index}", namespace, labels, **spec) for index, (namespace, labels, spec) in enumerate(found)]
    assert len(both(tmp_path, *pods)) == len(pods)
