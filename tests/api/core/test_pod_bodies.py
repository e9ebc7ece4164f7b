"""Pods as they are written: read again they ask for the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.api.core.pods import pod_spec
from cagrpc.api.core.selectors import PodIdentity
from solver.model import (
    ATTACHABLE_VOLUMES,
    HOSTNAME,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    PreferredPods,
    Requirement,
    Toleration,
    TopologySpread,
)
from solver.model.eligibility import why_not_eligible
from tests.support.solver.strategies import ZONES, constrained_specs, pod_specs

HOLDERS = "holders"
OF_WEB = (Requirement("app", Operator.IN, ("web",)),)


def read(spec: PodSpec, namespace: str) -> PodSpec:
    problems: list[str] = []
    body = pod_body(spec, "example.com/none", namespace)
    found = pod_spec(body, "spec", problems, Surroundings(PodIdentity(namespace)))
    assert not problems
    return replace(found, namespace=spec.namespace, labels=spec.labels)


@given(pod_specs())
def test_what_is_asked_of_nodes_is_the_same(spec: PodSpec) -> None:
    wanted = replace(
        spec,
        requests=tuple(sorted((name, amount) for name, amount in spec.requests if amount)),
        node_terms=(),
        unschedulable="",
    )
    assert read(wanted, HOLDERS) == wanted


@given(pod_specs(), st.sampled_from(ZONES), st.integers(1, 10), st.booleans(), st.sampled_from(["n0", "n1"]))
def test_conditions_of_volumes_become_node_affinity(spec: PodSpec, zone: str, size: int, kind: bool, name: str) -> None:
    bound = replace(spec, unschedulable="", tolerations=())
    labels = {"zone": zone, "size": str(size), **({"kind": "x"} if kind else {})}
    written = why_not_eligible(read(bound, HOLDERS), labels, (), name)
    assert (written is None) == (why_not_eligible(bound, labels, (), name) is None)


@given(constrained_specs())
def test_in_its_own_namespace_it_is_the_same_pod(spec: PodSpec) -> None:
    here = tuple(
        replace(spread, selector=replace(spread.selector, namespaces=(spec.namespace,)))
        if spread.selector.match_expressions
        else replace(spread, selector=PodSelector(None, ()))  # one without conditions counts nobody
        for spread in spec.topology_spread
    )
    wanted = replace(
        spec,
        node_terms=(),
        topology_spread=here,
        preferred_pods=tuple(sorted(spec.preferred_pods, key=lambda each: each.anti)),  # kind after kind
    )
    assert read(wanted, spec.namespace) == wanted


def test_in_another_namespace_it_sees_its_likes_there_too() -> None:
    own = PodAffinityTerm(HOSTNAME, PodSelector(OF_WEB, ("shop",)))
    foreign = PodAffinityTerm(HOSTNAME, PodSelector(OF_WEB, ("bank",)))
    everywhere = PodAffinityTerm(HOSTNAME, PodSelector(OF_WEB, None))
    spec = PodSpec(
        (("cpu", 500),),
        namespace="shop",
        labels=(("app", "web"),),
        pod_affinity=(everywhere,),
        pod_anti_affinity=(own, foreign),
        preferred_pods=(PreferredPods(5, own, anti=True),),
        topology_spread=(TopologySpread("zone", 1, PodSelector(OF_WEB, ("shop",))),),
    )
    found = read(spec, HOLDERS)
    assert [term.selector.namespaces for term in found.pod_anti_affinity] == [(HOLDERS, "shop"), ("bank",)]
    assert found.pod_affinity == (everywhere,)
    assert found.preferred_pods[0].term.selector.namespaces == (HOLDERS, "shop")
    assert found.topology_spread[0].selector.namespaces == (HOLDERS,)


def test_extended_resources_are_limits_too() -> None:
    spec = PodSpec((("cpu", 1500), ("hugepages-2Mi", 4 * 1024**2), ("memory", 3 * 1024**3), ("nvidia.com/gpu", 2)))
    (container,) = pod_body(spec, "example.com/none", HOLDERS)["containers"]
    limits = {"hugepages-2Mi": "4Mi", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": {"cpu": "1500m", "memory": "3Gi", **limits}, "limits": limits}


def test_a_pod_without_volumes_requests_no_attachments() -> None:
    """They are no resource that a Node has: the pod would never be scheduled."""
    spec = PodSpec(((f"{ATTACHABLE_VOLUMES}ebs.csi.aws.com", 1), ("cpu", 100)))
    (container,) = pod_body(spec, "example.com/none", HOLDERS)["containers"]
    assert container["resources"] == {"requests": {"cpu": "100m"}}


def test_a_toleration_of_everything() -> None:
    spec = PodSpec(tolerations=(Toleration(operator="Exists"),))
    assert pod_body(spec, "example.com/none", HOLDERS)["tolerations"] == [{"operator": "Exists"}]
