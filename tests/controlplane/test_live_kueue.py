"""From a Workload to pods that run, with no hands but Kueue's: the check controller, the ProvisioningRequest controller
and the simulated fleet of one `cagrpc serve`. What is preempted or deleted half-way leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cagrpc.api.kueue import PENDING, READY
from cagrpc.cluster.markers import BOOKING_LABELS, booking_label
from tests.support.controlplane import kueue as played
from tests.support.controlplane.deployed import install_crds, remove_crds
from tests.support.controlplane.kueue import PlayedKueue
from tests.support.controlplane.live import FINISHED, GPU, Live, group
from tests.support.controlplane.plane import ControlPlane

PODS = {"workers": 4, "head": 1}
REQUESTS = {"workers": {"cpu": "1", GPU: "1"}, "head": {"cpu": "3"}}
ONE = "job-capacity-1"
CRDS = "provisioning-crds.yaml"
BOOKED = {"nodeSelector": [{"key": "cagrpc.io/booked", "valueFromProvisioningClassDetail": "nodeSelector"}]}


@pytest.fixture(scope="module")
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    played.install(control_plane)
    install_crds(control_plane.admin, CRDS)
    control_plane.restart_controller_manager()
    yield
    played.remove(control_plane)
    remove_crds(control_plane.admin, CRDS)


@pytest.fixture
def kueue(kinds: None, live: Live) -> Iterator[PlayedKueue]:
    kueue = PlayedKueue(live.cluster)
    kueue.configure(podSetUpdates=BOOKED)
    yield kueue
    live.close()  # or it would go on making what is tidied away
    kueue.tidy()


def serve(live: Live, boot_seconds: float) -> None:
    """A gang of GPU workers with a CPU head needs two groups, so no single one can hold it."""
    groups = [group("cpu", "4", "8Gi", 0.1), group("gpu", "2", "8Gi", 1.0, gpus=2)]
    live.configure(
        [{"name": "all", "weight": 1, "node_groups": groups}],
        {"*": {"boot": f"{boot_seconds}s", "delete": "0.2s"}},
    )
    live.start()


def booked(live: Live) -> dict[str, set[str]]:
    """Nodes that hold room for requests, by their labels."""
    found: dict[str, set[str]] = {}
    for node in live.nodes():
        for label in node["metadata"]["labels"]:
            if label.startswith(BOOKING_LABELS):
                found.setdefault(label, set()).add(node["metadata"]["name"])
    return found


def test_a_job_runs_on_its_booked_nodes_and_preempted_leaves_nothing(kueue: PlayedKueue, live: Live) -> None:
    serve(live, boot_seconds=0.5)
    kueue.submit(pods=PODS, requests=REQUESTS)
    kueue.reserve()
    live.wait_for(lambda: kueue.state() == READY, "the check is Ready")
    assert "; costs $" in kueue.message()
    assert live.pools() == {"gpu": 2, "cpu": 1}
    uid = kueue.admin.get(kueue.request_path(ONE))["metadata"]["uid"]
    nodes = booked(live)[booking_label(uid)]
    assert len(nodes) == 3
    kueue.admit()
    kueue.start_pods()
    live.wait_for_running(5)
    assert {pod["spec"]["nodeName"] for pod in live.cluster.pods()} == nodes
    assert live.ordered() == 3, "pods that consume are no demand of their own"

    kueue.evict()
    live.cluster.admin.delete(live.cluster.path("pods"), gracePeriodSeconds=0)
    live.wait_for(lambda: not kueue.requests() and not kueue.templates(), "requests and templates are gone")
    live.wait_for(lambda: not booked(live), "no node is booked any more")
    assert kueue.state() == PENDING
    assert set(live.phases()) <= set(FINISHED)


def test_a_workload_that_is_deleted_half_way_leaves_nothing(kueue: PlayedKueue, live: Live) -> None:
    serve(live, boot_seconds=600.0)
    kueue.submit(pods=PODS, requests=REQUESTS)
    kueue.reserve()
    live.wait_for(lambda: live.ordered() == 3, "nodes are ordered")
    live.wait_for(lambda: "2 x gpu" in kueue.message(), "the estimate is told")
    kueue.admin.delete(kueue.path("job"))
    live.wait_for(lambda: not kueue.requests() and not kueue.templates(), "requests and templates are gone")
    live.wait_for(lambda: live.phases() == ["rolled-back"], "what was in flight is rolled back")
    live.wait_for(lambda: not live.nodes(), "no node is left")


def test_a_workload_that_cannot_be_served_is_told_what_would_help(kueue: PlayedKueue, live: Live) -> None:
    serve(live, boot_seconds=0.5)
    kueue.submit(pods={"workers": 1}, requests={"workers": {"cpu": "64"}})
    kueue.reserve()
    live.wait_for(lambda: kueue.state() == "Retry", "the check is Retry")
    assert "attempt 1 of 4 failed" in kueue.message()
    assert "cpu" in kueue.message()
    assert live.ordered() == 0
