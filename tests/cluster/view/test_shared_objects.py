"""What many objects have in common, a claim, budgets, a controller, is looked up and not gone through: what one more of
them costs, counted in steps, does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cagrpc.api.core.movability import MovingRules
from cagrpc.api.core.volume_binding import MOST_NODES
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view import expected as expected_pods
from cagrpc.cluster.view.bound import MOST_COMPARED, POD_DISRUPTION_BUDGETS
from cagrpc.cluster.view.model import ClusterModel
from cagrpc.cluster.view.storage import CLAIMS as VOLUME_CLAIMS
from cagrpc.cluster.view.storage import CLASSES as STORAGE_CLASSES
from cagrpc.cluster.view.storage import VOLUMES
from tests.cluster.view.test_shares import expected, grows, workload
from tests.support import devices, storage
from tests.support.controllers.cluster_objects import REPLICA_SETS, Fed, node, pod
from tests.support.messages import filled
from tests.support.steps import steps

_DEVICE_CLAIM = kubernetes_pb2.PodResourceClaim(name="gpu", resourceClaimName="c")


# ---- PodDisruptionBudgets


def budget(name: str, selector: Any, allowed: int = 1, namespace: str = "default") -> Any:
    document = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }
    return filled(kubernetes_pb2.PodDisruptionBudget(), document)


def beside(selector: Any, count: int) -> Fed:
    """Return a cluster of one node with so many pods, all different, and so many budgets with such selectors."""
    fed = Fed(moving=MovingRules())
    fed.nodes(node("n1"))
    fed.put(*(pod(f"p{at}", node="n1", labels={"app": "web", "at": f"{at}"}) for at in range(count)))
    fed.put(*(budget(f"b{at}", selector(at)) for at in range(count)), path=POD_DISRUPTION_BUDGETS)
    return fed


@pytest.mark.parametrize(
    "selector",
    [
        lambda at: {"matchLabels": {"at": f"{at}"}},
        lambda at: {"matchLabels": {"app": "web", "other": f"{at}"}},
        lambda at: {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web", f"{at}"]}]},
        lambda at: {"matchLabels": {"app": "web"}},
    ],
    ids=["each of one pod", "half of none", "not that", "all"],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.undrainable(["n1"]),
        lambda model: model.state(with_bound=True),
    ],
    ids=["undrainable nodes", "who is bound"],
)
def test_budgets_cost_no_product_with_pods(selector: Any, ask: Callable[[ClusterModel], object]) -> None:
    def first(count: int) -> int:
        return steps(lambda: ask(beside(selector, count).model))

    def again(count: int) -> int:
        fed = beside(selector, count)
        ask(fed.model)
        fed.put(budget("b0", selector(count)), path=POD_DISRUPTION_BUDGETS)
        return steps(lambda: ask(fed.model))

    grows(first, 100)
    grows(again, 100)


def test_a_budget_of_one_namespace_costs_nothing_in_others() -> None:
    fed = beside(lambda at: {"matchLabels": {"at": f"{at}"}}, 100)
    fed.model.undrainable(["n1"])
    known = steps(lambda: fed.model.undrainable(["n1"]))
    fed.put(budget("b", {}, namespace="tenant"), path=POD_DISRUPTION_BUDGETS)
    assert steps(lambda: fed.model.undrainable(["n1"])) == known


def test_budgets_beyond_what_is_compared_count_as_if_they_covered_the_pod() -> None:
    def not_that(at: int) -> Any:
        return {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web", f"{at}"]}]}

    few = beside(not_that, 10)
    assert not few.model.undrainable(["n1"])
    many = beside(not_that, MOST_COMPARED)
    assert "cover the same pod" in many.model.undrainable(["n1"])["n1"]


# ---- claims that many pods share


def sharing_devices(count: int) -> Fed:
    fed = Fed()
    fed.nodes(node("n1"))
    for path, objects in (
        (devices.CLASSES, [devices.device_class()]),
        (devices.SLICES, [devices.gpus(4)]),
        (devices.TEMPLATES, []),
        (devices.CLAIMS, [devices.claim("c")]),
    ):
        fed.relist(objects, path)
    fed.put(*(sharer(at) for at in range(count)))
    return fed


def sharer(number: int) -> Any:
    """Return a pod of one claim for devices; each is older than the one before."""
    return pod(f"p{number}", created=10**6 - number, resourceClaims=[_DEVICE_CLAIM])


def sharing_volume(count: int) -> Fed:
    fed = Fed()
    fed.nodes(node("n1"))
    fed.put(storage.storage_class(), path=STORAGE_CLASSES)
    fed.relist([], VOLUMES)
    fed.relist([storage.claim("c")], VOLUME_CLAIMS)
    fed.relist([storage.storage_class()], STORAGE_CLASSES)
    fed.put(*(user(at) for at in range(count)))
    return fed


def user(number: int, **more: Any) -> Any:
    volume = {"name": "v", "volumeSource": {"persistentVolumeClaim": {"claimName": "c"}}}
    found = pod(f"p{number}", created=10**6 - number, **more)
    filled(found.spec.volumes.add(), volume)
    return found


@pytest.mark.parametrize(("sharing", "one"), [(sharing_devices, sharer), (sharing_volume, user)])
def test_pods_of_one_claim_cost_as_much_each_however_many_there_are(sharing: Any, one: Any) -> None:
    grows(lambda count: steps(lambda: sharing(count).state()), 100)
    feds = [sharing(100), sharing(400)]
    few, many = (steps(lambda fed=fed: fed.put(one(1_000))) for fed in feds)  # type: ignore[misc]
    assert many <= 1.2 * few


def test_who_carries_a_claim_for_devices_changes_for_two_pods_only() -> None:
    def change(count: int) -> int:
        fed = sharing_devices(count)
        fed.state()
        fed.put(sharer(1_000))
        return steps(fed.model.arrivals)

    assert change(400) <= 1.2 * change(100)


def test_others_of_a_claim_go_to_the_first_nodes_where_it_is_used() -> None:
    fed = sharing_volume(0)
    names = sorted(f"n{at}" for at in range(2 * MOST_NODES))
    fed.nodes(*(node(name) for name in names))
    fed.put(*(user(at, node=name) for at, name in enumerate(names)), user(1_000))
    (waiting,) = fed.state().waiting
    (term,) = waiting.pod_set.spec.node_terms[-1]
    assert list(term.match_fields[0].values) == names[:MOST_NODES]


# ---- claims of others


def of_claim(number: int, **more: Any) -> Any:
    """Return a pod with a claim of its own."""
    found = pod(f"p{number}", **more)
    filled(
        found.spec.volumes.add(), {"name": "v", "volumeSource": {"persistentVolumeClaim": {"claimName": f"c{number}"}}}
    )
    return found


def test_which_volumes_a_claim_counts_on_costs_the_same_however_many_others_there_are() -> None:
    def change(count: int) -> int:
        fed = Fed()
        fed.nodes(node("n1"))
        fed.relist([storage.storage_class("fast"), storage.storage_class("local", storage.LOCAL)], STORAGE_CLASSES)
        fed.relist([storage.volume("v", class_name="local")], VOLUMES)
        bound = [storage.claim(f"c{at}", f"v{at}", class_name="local") for at in range(count)]
        waiting = [storage.claim(f"c{at}") for at in range(count, 2 * count)]
        fed.relist([*bound, *waiting], VOLUME_CLAIMS)
        fed.put(*(of_claim(at, node="n1" if at < count else "") for at in range(2 * count)))
        fed.put(of_claim(1_000))
        fed.model.arrivals()
        fed.put(storage.claim("c1000", class_name="local"), path=VOLUME_CLAIMS)
        return steps(fed.model.arrivals)

    assert change(400) <= change(100) + 20


@pytest.mark.parametrize(
    "spec",
    [
        lambda at: {"resources": {"requests": {"storage": f"{1 + at}Mi"}}},
        lambda at: {"selector": {"matchExpressions": [{"key": "no", "operator": "NotIn", "values": [f"{at}"]}]}},
        lambda at: {
            "selector": {"matchExpressions": [{"key": "at", "operator": "NotIn", "values": [f"{at % 20}", f"x{at}"]}]}
        },
    ],
    ids=["sizes", "selectors of all", "selectors of most"],
)
@pytest.mark.parametrize("zones", [1, 20])
def test_claims_of_many_kinds_cost_as_much_each_however_many_wait_for_volumes(spec: Any, zones: int) -> None:
    def come(count: int) -> int:
        fed = Fed()
        fed.nodes(node("n1"))
        fed.relist([storage.storage_class("local", storage.LOCAL)], STORAGE_CLASSES)
        found = [
            storage.volume(f"v{at}", f"{at % zones}", class_name="local", size="1Gi", labels={"at": f"{at}"})
            for at in range(20)
        ]
        fed.relist(found, VOLUMES)
        claims = [storage.claim(f"c{at}", class_name="local") for at in range(count)]
        for at, each in enumerate(claims):
            each["spec"].update(spec(at))
        fed.relist(claims, VOLUME_CLAIMS)
        fed.put(*(of_claim(at) for at in range(count)))
        return steps(fed.state)

    grows(come, 100)


def test_which_devices_are_taken_costs_the_same_however_many_claims_there_are() -> None:
    def change(count: int) -> int:
        fed = sharing_devices(0)
        fed.put(*(devices.claim(f"c{at}", f"gpu-{at}") for at in range(count)), path=devices.CLAIMS)
        fed.put(sharer(1))
        fed.state()
        fed.put(devices.claim("another", "gpu-1000"), path=devices.CLAIMS)
        return steps(fed.state)

    assert change(400) <= change(100) + 20


def test_a_claim_that_is_still_to_be_made_counts_on_volumes_of_the_class_that_is_the_default_then() -> None:
    fed = Fed()
    fed.nodes(node("n1"))
    marked = {"storageclass.kubernetes.io/is-default-class": "true"}
    old, new = (storage.storage_class(name, storage.LOCAL) for name in ("old", "new"))
    for each, created in ((old, 1), (new, 2)):
        each["metadata"] |= {"annotations": marked, "creationTimestamp": f"2026-01-0{created}T00:00:00Z"}
    fed.relist([old], STORAGE_CLASSES)
    fed.relist([storage.volume("v1", "a", class_name="old"), storage.volume("v2", "b", class_name="new")], VOLUMES)
    fed.relist([storage.claim("c1", class_name="old")], VOLUME_CLAIMS)
    fed.put(of_claim(1))
    ephemeral = pod("a")
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    filled(
        ephemeral.spec.volumes.add(), {"name": "v", "volumeSource": {"ephemeral": {"volumeClaimTemplate": template}}}
    )
    fed.put(ephemeral)

    def zones() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for each in fed.state().waiting:
            conditions = [
                one for terms in each.pod_set.spec.node_terms for term in terms for one in term.match_expressions
            ]
            found[each.pod_set.name] = [value for one in conditions for value in one.values]
        return found

    assert zones() == {"default/a": ["a"], "default/p1": []}, "the only volume of that class is given once"
    fed.put(new, path=STORAGE_CLASSES)
    assert zones() == {"default/a": ["b"], "default/p1": ["a"]}
    fed.drop(new, path=STORAGE_CLASSES)
    assert zones() == {"default/a": ["a"], "default/p1": []}


# ---- workloads of others


def test_whether_workloads_are_waited_for_costs_the_same_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expected_pods, "MOST_LOOKED_AT", 50)

    def look(count: int) -> int:
        fed = Fed(expects=True)
        fed.put(*(workload(f"r{at}", 1) for at in range(count)), path=REPLICA_SETS)
        expected(fed)
        return steps(lambda: expected(fed))

    assert look(400) <= 1.2 * look(100)


def test_all_workloads_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_pods, "MOST_LOOKED_AT", 50)
    fed = Fed(expects=True)
    fed.put(*(workload(f"r{at}", 1) for at in range(120)), path=REPLICA_SETS)
    assert expected(fed) == 120
    fed.time += 3_600
    assert [expected(fed) for _ in range(4)] == [70, 20, 0, 0]


def test_workloads_that_are_believed_again_cost_the_event_of_one_nothing() -> None:
    def revive(count: int) -> int:
        fed = Fed(expects=True)
        fed.put(*(workload(f"r{at}", 1) for at in range(count)), path=REPLICA_SETS)
        fed.time += 3_600
        assert expected(fed) == 0
        taken = steps(lambda: fed.put(pod("p", owner="ReplicaSet", owner_name="r0")))
        assert expected(fed) == count - 1
        return taken

    assert revive(400) <= 1.2 * revive(100)


def test_kinds_of_owners_that_somebody_makes_up_are_not_remembered() -> None:
    fed = Fed(expects=True)
    for number in range(3_000):
        made_up = pod("p", owner=f"Kind{number}", owner_name="x")
        fed.put(made_up)
        fed.drop(made_up)
    fed.put(pod("p", owner="K" * 1_000_000, owner_name="x"))
    fed.drop(pod("p"))
    known = fed.model._expected._progress  # type: ignore[union-attr]
    assert len(known) <= 1_001
    assert max(map(len, known)) < 100
