"""The resource slack in a cluster: `cagrpc serve` with `drive: plan`, the real scheduler and controllers, simulated
nodes. Requirements (R1 to R10) and specifications (S1 to S7) of the slack that reach the cluster, by each carrier;
those that are arithmetic alone are in tests/solver. What CA makes of buffers is tested with CA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cagrpc.api.core.slack import EXCLUDE, MIRROR
from solver.model import HOSTNAME
from solver.model.quantities import amount
from tests.support.controlplane import slack
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.slack import SeenSlack

CARRIERS = ("virtual", "buffer", "pods")
SMALL = ("4", "16Gi")
BOOT_SECONDS = 0.3
SLOW_BOOT_SECONDS = 3.0
"""Where a pod must not find a new node before the room that is held for it."""


def carried_by(*daily: str) -> pytest.MarkDecorator:
    """What does not depend on the carrier runs with these each day, and with the others in the nightly set."""
    nightly = pytest.mark.long("the same with another carrier of the slack")
    each = [pytest.param(carrier, marks=() if carrier in daily else nightly) for carrier in CARRIERS]
    return pytest.mark.parametrize("world", each, indirect=True)


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> Iterator[None]:
    slack.install(control_plane.admin)
    yield
    slack.remove(control_plane.admin)


@pytest.fixture(params=CARRIERS)
def world(request: pytest.FixtureRequest, installed: None, live: Live) -> SlackHarness:
    return SlackHarness(live, SeenSlack(live.cluster.admin, live.cluster.namespace), request.param)


@dataclass
class SlackHarness:
    live: Live
    seen: SeenSlack
    carrier: str

    def start(
        self,
        *targets: Mapping[str, Any],
        groups: list[dict[str, Any]] | None = None,
        boot_seconds: float = BOOT_SECONDS,
        **more: Any,
    ) -> None:
        """Of one tier."""
        found = groups or [group("small", *SMALL, 0.1), group("huge", "64", "256Gi", 1.5)]
        self.live.configure(
            [{"name": "all", "weight": 1, "node_groups": found}],
            {"*": {"boot": f"{boot_seconds}s", "delete": "0.2s"}},
            slack={"carrier": self.carrier, "targets": list(targets), **more},
            namespace=self.live.cluster.namespace,
        )
        self.live.start()

    def said(self) -> dict[str, Any]:
        """`/slack`."""
        return dict(self.live.serving.get("/slack"))

    def count(self, what: str) -> int:
        return sum(each[what] for each in self.said()["targets"])

    def wait_until_held(self, least: int = 1) -> None:
        """All that is wanted, and so much at least; and the carrier says so in the cluster."""

        def held() -> bool:
            wanted = self.count("wanted")
            return wanted >= least and self.count("held") == wanted and self.carried() == wanted

        self.live.wait_for(held, f"at least {least} placeholders are wanted, and all are held")
        self.live.wait_until_settled()

    def wait_until_restored(self, increments: int, least: int) -> None:
        """After there were so many increments, and something took the room of placeholders."""
        self.live.wait_for(lambda: len(self.live.increments()) > increments, "nodes are opened for the slack")
        self.wait_until_held(least)

    def carried(self) -> int:
        """As others in the cluster see it."""
        match self.carrier:
            case "buffer":
                return sum(self.seen.counts().values())
            case "pods":
                return sum(self.seen.pause_nodes().values())
            case _:
                return self.count("held")

    def held_on(self) -> Counter[str]:
        """Placeholders by node."""
        found: Counter[str] = Counter()
        for shape in self.said()["shapes"]:
            found.update(shape["nodes"])
        return found

    def wait_for_bound(self, app: str, count: int) -> dict[str, str]:
        """Pods of one Deployment, and where they are."""

        def where() -> dict[str, str]:
            found = [pod for pod in self.seen.real_pods() if pod["metadata"]["labels"].get("app") == app]
            return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in found if "nodeName" in pod["spec"]}

        self.live.wait_for(lambda: len(where()) == count, f"{count} pods of {app} are bound")
        return where()

    def names(self) -> set[str]:
        return {node["metadata"]["name"] for node in self.live.nodes()}


def fixed(count: int, cpu: str = "1") -> dict[str, Any]:
    return {"name": "burst", "fixed": [{"name": "pod", "count": count, "requests": {"cpu": cpu, "memory": "1Gi"}}]}


def cpu_of(shape: Mapping[str, Any]) -> int:
    return amount("cpu", shape["requests"].get("cpu", 0))


# ---- a burst


@carried_by("buffer", "pods")
def test_a_burst_starts_at_once_where_room_is_held(world: SlackHarness) -> None:
    """On nodes that stand; and the slack is restored by one increment."""
    before, increments = _prepare_for_a_burst(world, placeholders=3)
    assert set(_burst(world).values()) <= before, "no node was waited for"
    world.wait_until_restored(increments, 3)
    assert len(world.live.increments()) == increments + 1, "what it took is restored in one go"
    assert world.count("pushed_out") == 0


@pytest.mark.long("they wait in tests/controllers/slack/test_holding.py, too")
@carried_by("virtual")
def test_without_slack_a_burst_waits_for_nodes_to_come(world: SlackHarness) -> None:
    before, _ = _prepare_for_a_burst(world, placeholders=0)
    assert not set(_burst(world).values()) & before
    assert world.count("pushed_out") == 0


def _prepare_for_a_burst(world: SlackHarness, placeholders: int) -> tuple[set[str], int]:
    """Return the names of the nodes that stand, and how many increments there were."""
    world.start(fixed(placeholders), boot_seconds=SLOW_BOOT_SECONDS)
    world.live.cluster.create_deployment("web", 4, {"cpu": "1", "memory": "1Gi"})
    world.wait_for_bound("web", 4)
    world.wait_until_held(placeholders)
    return world.names(), len(world.live.increments())


def _burst(world: SlackHarness) -> dict[str, str]:
    """Return where three more pods are."""
    world.live.cluster.create_deployment("burst", 3, {"cpu": "1", "memory": "1Gi"})
    return world.wait_for_bound("burst", 3)


# ---- how much


@carried_by("virtual")
def test_s5_r2_the_rate_is_held_at_least(world: SlackHarness) -> None:
    """[S5], [R2], with [S3], [S6] and [R5]: a fifth of what is requested, in pieces that fit and are no bigger than the
    biggest pod, on nodes that are no larger than any pod needs."""
    world.start({"name": "all", "rate": 0.2, "granularity": 2})
    world.live.cluster.create_deployment("web", 10, {"cpu": "1", "memory": "1Gi"})
    world.wait_for_bound("web", 10)
    world.live.wait_for(
        lambda: sum(cpu_of(shape) * shape["held"] for shape in world.said()["shapes"]) >= 2000,
        "a fifth of what is requested is held",
    )
    world.wait_until_held()
    assert max(map(cpu_of, world.said()["shapes"])) <= 1000
    assert set(world.live.pools()) == {"small"}
    (target,) = world.said()["targets"]
    assert 0 < target["cost_usd_per_hour"] <= 0.1 * len(world.live.nodes())


@carried_by("buffer")
def test_r6_no_room_is_kept_for_databases(world: SlackHarness) -> None:
    world.start({"name": "all", "rate": 0.2, "granularity": 2})
    cluster = world.live.cluster
    cluster.create_deployment("web", 4, {"cpu": "1", "memory": "1Gi"})
    world.wait_for_bound("web", 4)
    database = {"annotations": {EXCLUDE: "true"}}
    cluster.create_deployment("database", 1, {"cpu": "3500m", "memory": "4Gi"}, metadata=database)
    world.wait_for_bound("database", 1)
    world.live.wait_for(
        lambda: sum(cpu_of(shape) * shape["held"] for shape in world.said()["shapes"]) >= 1500,
        "a fifth of what is requested is held, of the database's requests too",
    )
    assert max(cpu_of(shape) for shape in world.said()["shapes"]) <= 1000


@carried_by("pods")
def test_r7_there_is_room_for_a_pod_with_the_most_of_everything(world: SlackHarness) -> None:
    world.start({"name": "all", "rate": 0.5, "granularity": 2})
    cluster = world.live.cluster
    cluster.create_deployment("wide", 1, {"cpu": "3", "memory": "1Gi"})
    cluster.create_deployment("high", 1, {"cpu": "500m", "memory": "10Gi"})
    world.wait_for_bound("wide", 1)
    world.wait_for_bound("high", 1)
    world.wait_until_held()
    biggest = {"cpu": "3", "memory": "10Gi"}
    world.live.wait_for(
        lambda: [shape["held"] for shape in world.said()["shapes"] if shape["requests"] == biggest] == [1],
        "there is room for a pod with the most of everything",
    )
    before = world.names()
    cluster.create_deployment("between", 1, {"cpu": "2", "memory": "6Gi"})
    assert set(world.wait_for_bound("between", 1).values()) <= before


# ---- of which pods, and where


@carried_by("pods")
def test_s7_r8_r9_marked_workloads_are_mirrored(world: SlackHarness) -> None:
    """Room for two more of a Deployment whose pods select nodes and keep apart on hosts."""
    world.start(
        {"name": "all", "rate": 0.1, "version": "1"},
        groups=[
            group("small", *SMALL, 0.1, labels={"disk": "hdd"}),
            group("fast", *SMALL, 0.2, labels={"disk": "ssd"}),
        ],
    )
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster = world.live.cluster
    cluster.create_deployment("web", 2, {"cpu": "500m"}, nodeSelector={"disk": "ssd"}, affinity=apart)
    where = world.wait_for_bound("web", 2)
    path = cluster.path("deployments", "web", api="apis/apps/v1")
    cluster.admin.merge(path, {"metadata": {"annotations": {MIRROR: "2"}}})
    world.live.wait_for(lambda: any("/mirror/" in each["name"] for each in world.said()["shapes"]), "it is mirrored")
    world.wait_until_held(2)
    (mirror,) = [each for each in world.said()["shapes"] if "/mirror/" in each["name"]]
    fast = {node["metadata"]["name"] for node in world.live.nodes() if node["metadata"]["labels"]["disk"] == "ssd"}
    assert (mirror["wanted"], sorted(mirror["nodes"].values())) == (2, [1, 1])
    assert set(mirror["nodes"]) <= fast - set(where.values())
    before = world.names()
    cluster.admin.merge(path, {"spec": {"replicas": 4}})
    assert set(world.wait_for_bound("web", 4).values()) <= before, "the next two have room"


@carried_by("buffer", "pods")
def test_s2_r1_2_placeholders_stay_where_they_are(world: SlackHarness) -> None:
    """Through other pods that come, and a restart."""
    world.start(fixed(6))
    cluster = world.live.cluster
    cluster.create_deployment("web", 3, {"cpu": "1", "memory": "1Gi"})
    world.wait_for_bound("web", 3)
    world.wait_until_held(6)
    before = world.held_on()
    more = 4 * len(world.live.nodes()) - 3 - 6 + 1
    increments = len(world.live.increments())
    cluster.create_deployment("more", more, {"cpu": "1", "memory": "1Gi"})
    world.wait_for_bound("more", more)
    world.wait_until_restored(increments, 6)
    after = world.held_on()
    taken = Counter(pod["spec"]["nodeName"] for pod in world.seen.real_pods())
    left = Counter({name: 4 - taken[name] for name in before})
    if world.carrier != "pods":  # of these the scheduler says which give way
        assert before & after == before & left, "only those that lost their room have moved"
    world.live.kill()
    world.live.start()
    world.live.wait_for(lambda: world.said().get("targets"), "it leads again")
    world.wait_until_held(6)
    assert world.held_on() == after


def test_s4_all_of_it_belongs_to_one_object(world: SlackHarness) -> None:
    world.start(fixed(3))
    world.wait_until_held(3)
    cluster = world.live.cluster
    path = cluster.path("slacks", "cagrpc", api="apis/cagrpc.io/v1alpha1")

    def seen() -> dict[str, Any]:
        return dict(cluster.admin.get(path))

    world.live.wait_for(lambda: seen().get("status", {}).get("held") == 3, "the object says what is held")
    (owner,) = {
        (each["kind"], each["uid"])
        for found in (*world.seen.buffers(), *world.seen.templates(), *world.seen.replica_sets())
        for each in found["metadata"]["ownerReferences"]
    } or {("Slack", seen()["metadata"]["uid"])}
    assert owner == ("Slack", seen()["metadata"]["uid"])
    assert (seen()["status"]["carrier"], seen()["status"]["wanted"]) == (world.carrier, 3)


# ---- scale-down


@pytest.mark.long("R3 is in test_live_slack.py, and with cases in tests/controllers/scale_down/test_nodes.py")
@carried_by("buffer")
def test_r3_nodes_that_hold_slack_are_not_taken(world: SlackHarness) -> None:
    """Somebody plays the autoscaler, and takes every node that may go."""
    world.start(fixed(6))
    cluster = world.live.cluster
    cluster.create_deployment("web", 8, {"cpu": "1", "memory": "1Gi"})
    world.wait_for_bound("web", 8)
    world.wait_until_held(6)
    cluster.admin.delete(cluster.path("deployments", "web", api="apis/apps/v1"))
    world.live.wait_for(lambda: not world.seen.real_pods(), "the pods are gone")
    disabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

    def may_go() -> set[str]:
        found = world.live.nodes()
        return {each["metadata"]["name"] for each in found if disabled not in each["metadata"].get("annotations", {})}

    world.live.wait_for(
        lambda: len(world.names() - may_go()) == 2, "as many nodes are kept as the slack needs, and no more"
    )
    increments, kept = len(world.live.increments()), world.names() - may_go()
    ids = {each["metadata"]["name"]: each["spec"]["providerID"] for each in world.live.nodes()}
    with world.live.serving.provider() as provider:
        for name in sorted(may_go()):
            provider.delete("small", ids[name])
    world.live.wait_for(lambda: world.names() == kept, "the others are taken")
    world.live.wait_for(lambda: set(world.held_on()) == kept, "what was on them has moved")
    world.wait_until_held(6)
    assert len(world.live.increments()) == increments, "no node was opened for it"
