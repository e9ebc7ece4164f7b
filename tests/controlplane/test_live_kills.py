"""The process killed on the way of an increment, one process after the other: the next one goes on where the last one
was. Nothing is ordered twice, nothing is left over, no gang is bound in part. Here are some steps, against the real API
server; every step is in tests/controllers/planning/test_killed.py and tests/fleet/test_crash.py."""

from __future__ import annotations

from tests.controlplane.test_live_gangs import EACH, A, B, bound, create_gang
from tests.support.controlplane.deployed import clear_journal, install_crds
from tests.support.controlplane.live import Live, group

PODS = 8
GROUP = group("only", "4", "8Gi", 0.2)
TO_DONE = (
    "before order",
    "after register#2",
    "after commit ready",
    "after nominate#3",
    "after release#3",
    "before commit done",
)
WITH_A_LEASE = "after nominate#3"
"""One: whoever comes next waits until the Lease of the killed one has run out."""
TO_ROLLED_BACK = ("before commit rolling-back", "after delete")


def test_on_the_way_to_done(live: Live) -> None:
    live.configure([{"name": "all", "node_groups": [GROUP]}])
    live.cluster.create_deployment("web", PODS, {"cpu": "1500m", "memory": "1Gi"})
    for step in TO_DONE:
        live.serve_until(step)
    live.start()
    live.wait_for_running(PODS)
    live.wait_until_settled()
    live.assert_nothing_wasted(nodes=PODS // 2)


def test_with_the_journal_in_the_cluster(live: Live) -> None:
    admin = live.cluster.admin
    install_crds(admin)
    live.configure(
        [{"name": "all", "node_groups": [GROUP]}],
        journal="cluster",
        namespace=live.cluster.namespace,
    )
    live.cluster.create_deployment("web", PODS, {"cpu": "1500m", "memory": "1Gi"})
    live.serve_until(WITH_A_LEASE)
    live.start()
    live.wait_for_running(PODS)
    live.wait_until_settled()
    live.assert_nothing_wasted(nodes=PODS // 2)
    (told,) = admin.items("/apis/cagrpc.io/v1alpha1/increments")
    assert told["spec"]["summary"] == f"only+{PODS // 2}"
    live.close()
    clear_journal(admin)


def test_on_the_way_back(live: Live) -> None:
    live.configure([{"name": "all", "node_groups": [A, B]}], {"b": {"late_shortage": 1}}, planner={"shortage": "10m"})
    create_gang(live)
    pods = set(bound(live))
    for step in TO_ROLLED_BACK:
        live.serve_until(step)
    live.start()
    live.wait_until_settled()
    live.wait_for(lambda: not live.nodes(), "its nodes are gone")
    assert bound(live) == dict.fromkeys(pods)
    assert live.ordered() == 2 * EACH
