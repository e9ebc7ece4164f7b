"""Karpenter's own consolidation and cagrpc's, of the same cluster one after the other: the same nodes with the same
pods on them, of which half have gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any

from tests.support.controlplane.consolidating import ON, Outcome
from tests.support.controlplane.karpenter import CLAIMS, POOLS, Karpenter, configure
from tests.support.controlplane.live import Live
from tests.support.controlplane.observer import History, Observer, observing
from tests.support.controlplane.processes import wait_for
from tests.support.controlplane.rotting import (
    PRICES,
    SHAPES,
    Workload,
    allocatable,
    clear,
    create,
    least_usd_per_hour,
    place,
    rot,
    running,
    workloads,
)

PODS = 200
POOL = "all"
TYPE = "node.kubernetes.io/instance-type"
BUDGETS = [{"nodes": "50%"}]
QUIET_SECONDS = 60.0
"""Karpenter looks every 10 s, and waits 15 s before it does what it has found."""
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Rotten:
    """A cluster as Karpenter has filled it, when half of the pods are gone."""

    kinds: Mapping[str, str]
    places: Mapping[str, Sequence[str]]


def rotten(karpenter: Karpenter, found: Sequence[Workload]) -> Rotten:
    cluster = karpenter.cluster
    karpenter.offer({name: allocatable(name) for name in SHAPES}, PRICES)
    karpenter.node_pool(POOL, disruption=disruption("Never"))
    create(cluster, found)
    pods = sum(each.replicas for each in found)
    wait_for(lambda: running(cluster) == pods, "all pods run", seconds=PATIENCE_SECONDS)
    rot(cluster, found)
    with observing(cluster.plane, found, PRICES, TYPE) as observer:
        seen = observer.history()
    return Rotten({name: each.kind for name, each in seen.lives.items()}, seen.places)


def disruption(after: str) -> dict[str, Any]:
    return {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": after, "budgets": BUDGETS}


def theirs(karpenter: Karpenter, found: Sequence[Workload]) -> History:
    with observing(karpenter.cluster.plane, found, PRICES, TYPE) as observer:
        karpenter.change_pool(POOL, {"disruption": disruption("0s")})
        wait_until_quiet(observer)
        return observer.history()


def wait_until_quiet(observer: Observer, quiet_seconds: float = QUIET_SECONDS) -> None:
    give_up = observer.now() + PATIENCE_SECONDS
    while observer.now() < observer.history().last_change_seconds + quiet_seconds:
        assert observer.now() < give_up, "it does not come to an end"
        sleep(2)


def emptied(karpenter: Karpenter, found: Sequence[Workload]) -> None:
    clear(karpenter.cluster, found)
    karpenter.cluster.admin.delete(POOLS)
    karpenter.cluster.admin.delete(CLAIMS)
    wait_for(lambda: not karpenter.nodes() and not karpenter.claims(), "all nodes are gone", seconds=300)


def node_groups() -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "instance_type": name,
            "zone": "test-zone-a",
            "capacity_type": "on-demand",
            "allocatable": allocatable(name),
            "price_usd_per_hour": PRICES[name],
            "max_size": 1000,
        }
        for name in SHAPES
    ]


def stand_again(live: Live, found: Sequence[Workload], before: Rotten) -> None:
    """The same nodes and places, of the NodeClaims of `cagrpc serve`: CA asks for them."""
    configure(live, [{"name": POOL, "node_groups": node_groups()}], drive="assist")
    live.start()
    live.wait_for(lambda: live.serving.get("/status")["ready"], "NodeClaims are listed")
    wanted = Counter(before.kinds.values())
    with live.serving.provider() as provider:
        for kind, count in wanted.items():
            provider.increase(kind, count)
    live.wait_for(lambda: live.types() == wanted, "the nodes are there", seconds=300)
    live.wait_until_settled()
    free = {kind: [each for each in live.nodes() if each["metadata"]["labels"][TYPE] == kind] for kind in wanted}
    places = {free[kind].pop()["metadata"]["name"]: before.places[name] for name, kind in before.kinds.items()}
    place(live.cluster, found, places)
    live.wait_for_running(sum(each.left for each in found))
    live.kill()


def consolidation() -> dict[str, Any]:
    return {**ON, "budgets": BUDGETS}


def ours(live: Live, found: Sequence[Workload]) -> History:
    with observing(live.cluster.plane, found, PRICES, TYPE) as observer:
        configure(live, [{"name": POOL, "node_groups": node_groups()}], consolidation=consolidation())
        live.start()
        wait_until_quiet(observer)
        live.wait_for_running(sum(each.left for each in found))
        return observer.history()


def test_side_by_side(karpenter: Karpenter, live: Live) -> None:
    found = workloads(PODS)
    before = rotten(karpenter, found)
    least = least_usd_per_hour(found, before.kinds, before.places)
    of_karpenter = theirs(karpenter, found)
    print(f"Karpenter: {Outcome(of_karpenter, least)}")
    emptied(karpenter, found)
    stand_again(live, found, before)
    of_cagrpc = ours(live, found)
    print(f"cagrpc:    {Outcome(of_cagrpc, least)}")
    assert of_cagrpc.costs[0] == of_karpenter.costs[0]
    assert of_cagrpc.violations == []
    assert of_cagrpc.cost <= 1.05 * least
    assert of_cagrpc.cost <= of_karpenter.cost


LIMITED, UNLIMITED = {"cpu": "8"}, {"cpu": "1000"}
WEB = 12


def pool_of(node: Any) -> str:
    return str(node["metadata"]["labels"]["karpenter.sh/nodepool"])


def tiers(limits: Mapping[str, str]) -> list[dict[str, Any]]:
    """Two tiers of the same nodes at the same price; the better one has a limit."""
    medium = [each for each in node_groups() if each["id"] == "medium"]
    better = [{**each, "id": "medium-better"} for each in medium]
    return [
        {"name": "better", "weight": 10, "limits": dict(limits), "node_groups": better},
        {"name": "other", "weight": 1, "node_groups": medium},
    ]


def test_a_better_tier_gets_its_pods_back_here_and_not_there(karpenter: Karpenter, live: Live) -> None:
    karpenter.offer({"medium": allocatable("medium")}, PRICES)
    cluster = karpenter.cluster
    karpenter.node_pool("better", weight=10, limits=LIMITED, disruption=disruption("0s"))
    karpenter.node_pool("other", weight=1, disruption=disruption("0s"))
    web = Workload("web", WEB, WEB, {"cpu": "1500m", "memory": "1Gi"})
    create(cluster, [web])
    wait_for(lambda: running(cluster) == WEB, "all pods run", seconds=PATIENCE_SECONDS)
    before = Counter(pool_of(each) for each in karpenter.nodes())
    assert before == {"better": 2, "other": 4}
    karpenter.change_pool("better", {"limits": UNLIMITED})
    sleep(QUIET_SECONDS)
    assert Counter(pool_of(each) for each in karpenter.nodes()) == before, "Karpenter's stay where they are"

    emptied(karpenter, [web])
    configure(live, tiers(LIMITED), consolidation=consolidation())
    live.start()
    create(cluster, [web])
    live.wait_for_running(WEB)
    live.wait_until_settled()
    assert Counter(pool_of(each) for each in karpenter.nodes()) == before
    live.kill()
    configure(live, tiers(UNLIMITED), consolidation=consolidation())
    live.start()
    live.wait_for(
        lambda: Counter(pool_of(each) for each in karpenter.nodes()) == {"better": WEB // 2},
        "all nodes are of the better tier",
        seconds=PATIENCE_SECONDS,
    )
    live.wait_for_running(WEB)
