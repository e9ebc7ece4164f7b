"""How long pods of one namespace wait for a round, whatever goes on in another: cluster state and batching with
simulated time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cagrpc.controllers.planning.batching import WAIT_FOR_OTHERS, BatchingState, notice, planned, round_due
from cagrpc.controllers.settings import PlannerSettings
from tests.cluster.view.test_expected import QUOTAS, made, replica_set, template
from tests.support.controllers.cluster_objects import REPLICA_SETS, Fed, pod

SETTINGS = PlannerSettings(idle_seconds=1.0, window_seconds=10.0)
TICK_SECONDS = 0.25
Disturb = Callable[[Fed, int], None]


def nothing(fed: Fed, tick: int) -> None:
    """The other namespace is at rest."""


def replicas_up_and_down(fed: Fed, tick: int) -> None:
    fed.put(replica_set(5 * (tick % 2), namespace="noisy"), path=REPLICA_SETS)


def another_template_each_time(fed: Fed, tick: int) -> None:
    name = f"web-{tick % 7}"
    fed.drop(replica_set(0, name=name, namespace="noisy"), path=REPLICA_SETS)
    fed.put(replica_set(3, name=name, namespace="noisy", of=template(f"{tick + 1}m")), path=REPLICA_SETS)


def pods_created_and_deleted(fed: Fed, tick: int) -> None:
    fed.put(pod(f"p{tick}", namespace="noisy"))
    fed.drop(pod(f"p{tick - 1}", namespace="noisy"))


def pods_of_a_workload_deleted(fed: Fed, tick: int) -> None:
    fed.put(replica_set(3, tick % 2, namespace="noisy"), path=REPLICA_SETS)
    own = made("p", namespace="noisy")
    if tick % 2:
        fed.drop(own)
    else:
        fed.put(own)


def refused_by_a_quota(fed: Fed, tick: int) -> None:
    hard = {"pods": "2"}
    quota = {"metadata": {"namespace": "noisy", "name": "q"}, "status": {"hard": hard, "used": hard}}
    fed.put(quota, path=QUOTAS)
    fed.put(replica_set(5 + tick % 2, 2, namespace="noisy"), path=REPLICA_SETS)


def refused_by_a_webhook(fed: Fed, tick: int) -> None:
    refused = "True" if tick else "False"
    fed.put(replica_set(5, namespace="noisy", ReplicaFailure=refused), path=REPLICA_SETS)


def waits_seconds(disturb: Disturb, seconds: float = 60.0) -> list[float]:
    """Of pods that come in another namespace, one after each round that has planned the last."""
    fed, memory, came, waited = Fed(expects=True), BatchingState(), 5.0, list[float]()
    for tick in range(int(seconds / TICK_SECONDS)):
        fed.time = tick * TICK_SECONDS
        disturb(fed, tick)
        if fed.time == came:
            fed.put(pod(f"modest-{tick}", namespace="modest"))
        arrivals = fed.model.arrivals()
        memory = notice(memory, arrivals, "state", fed.time)
        if round_due(memory, arrivals, fed.time, SETTINGS).due:
            memory = planned(arrivals, "state", fed.time)
            if fed.time >= came:
                waited.append(fed.time - came)
                came = fed.time + TICK_SECONDS
    return waited


@pytest.mark.parametrize("disturb", [nothing, refused_by_a_quota, refused_by_a_webhook])
def test_who_is_refused_pods_is_no_news(disturb: Disturb) -> None:
    waited = waits_seconds(disturb)
    assert len(waited) > 40
    assert max(waited) <= SETTINGS.idle_seconds + TICK_SECONDS


@pytest.mark.parametrize(
    "disturb",
    [replicas_up_and_down, another_template_each_time, pods_created_and_deleted, pods_of_a_workload_deleted],
)
def test_news_without_end_keeps_others_waiting_for_a_short_time_only(disturb: Disturb) -> None:
    waited = waits_seconds(disturb)
    assert len(waited) > 10
    assert max(waited) <= WAIT_FOR_OTHERS * SETTINGS.idle_seconds + TICK_SECONDS
