"""One namespace does what it can to be in the way, with rights to pods, workloads, templates and requests; pods and
requests of another one are served within their usual time all the while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.support.controlplane.autoscaler import Autoscaler
from tests.support.controlplane.deployed import install_crds, remove_crds
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.processes import meanwhile
from tests.support.controlplane.provisioning import PlaneRequests
from tests.support.controlplane.tenant import DEMONSTRATED, HostileBatch, Tenant, batches

BATCHES, MANY_BATCHES = 6, 40
"""How much the tenant does; a batch takes about three seconds."""
AT_LENGTH = pytest.mark.long("the same at length")
PODS, CPUS = 6, {"small": 4, "large": 8}
GROUPS = [group("small", "4", "16Gi", 0.2), group("large", "8", "32Gi", 0.45)]
TIMES, MORE_SECONDS = 2.0, 30.0
"""Served within so many times the usual time and so much: pods of both wait for the same scheduler and controllers."""


@pytest.fixture
def requests(live: Live) -> Iterator[PlaneRequests]:
    requests = PlaneRequests(live)
    install_crds(live.cluster.admin, "slack-crds.yaml")
    requests.template("honest", {"cpu": "3", "memory": "1Gi"})
    yield requests
    live.close()
    remove_crds(live.cluster.admin, "slack-crds.yaml")
    requests.close()


@pytest.fixture
def tenant(requests: PlaneRequests) -> Iterator[Tenant]:
    tenant = Tenant(requests.cluster.plane, f"{requests.cluster.namespace}-hostile")
    yield tenant
    requests.live.close()
    tenant.close()


def served(requests: PlaneRequests) -> float:
    """Seconds until more honest pods run and another honest request is provisioned. All stay, so that there is no room
    for the next ones."""
    live, cluster, there = requests.live, requests.cluster, len(requests.cluster.pods())
    began = time.monotonic()
    for number in range(there, there + PODS):
        cluster.create_pod(f"honest-{number}", {"cpu": "1500m", "memory": "1Gi"})
    requests.create(f"honest-{there}", {"honest": 2})
    live.wait_for_running(there + PODS)
    requests.wait_for(f"honest-{there}", "Provisioned", seconds=120)
    return time.monotonic() - began


@pytest.mark.parametrize("count", [BATCHES, pytest.param(MANY_BATCHES, marks=AT_LENGTH)])
@pytest.mark.parametrize(
    "drive", ["plan", pytest.param("assist", marks=pytest.mark.long("the same with an autoscaler that plans"))]
)
def test_nobody_waits_for_a_hostile_tenant(requests: PlaneRequests, tenant: Tenant, drive: str, count: int) -> None:
    live = requests.live
    provisioners = [{"name": "all", "node_groups": GROUPS}]
    live.configure(provisioners, drive=drive, slack={}, namespace=requests.cluster.namespace)
    live.start()
    with ExitStack() as stack:
        if drive == "assist":
            stack.enter_context(meanwhile(stack.enter_context(Autoscaler(live, CPUS)).step, every_seconds=0.5))
        served(requests)  # with what a first time costs
        usual = max(served(requests) for _ in range(2))
        times: list[float] = []

        # What is small is not looked for: all of it stays.
        @settings(
            max_examples=count,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @example(made=DEMONSTRATED, clears=False)
        @given(made=batches, clears=st.booleans())
        def hostile(made: HostileBatch, clears: bool) -> None:
            if clears:
                tenant.clear()
            for where, body in made:
                tenant.create(where, body)
            times.append(served(requests))
            assert times[-1] <= TIMES * usual + MORE_SECONDS, (times, made)

        hostile()
    print(f"{drive}: usually {usual:.1f} s; {[round(each, 1) for each in times]}; {tenant.taken}, {tenant.refused}")
    assert len(times) >= count
    assert tenant.taken > 3 * count, tenant.refused
