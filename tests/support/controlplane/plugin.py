"""What pytest knows of the programs that tests run: the fixtures, the marks `cluster` and `long`, and what the summary
reports of tests left out.

Each worker of pytest-xdist has a control plane of its own, for tests restart its parts and own all of its nodes. These
tests come last, the longest of them first, so that no worker waits long for another in the end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cagrpc.kube.client.client import Client
from tests.support.controlplane.binaries import (
    CLUSTER_API,
    HELM,
    KARPENTER,
    KUBECTL,
    OLDEST_ORACLE,
    ORACLE,
    PROMETHEUS,
    RPC,
    TO_BUILD,
    TO_RUN,
    CannotBuild,
    GoModule,
    build,
    lacking,
    required,
)
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.helm import Helm
from tests.support.controlplane.karpenter import Karpenter, running_karpenter
from tests.support.controlplane.kubectl import Kubectl
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import RELEASE, ControlPlane, Release

LEFT_OUT = "a program is not here: "
NEEDS: Mapping[str, tuple[str, ...]] = {
    "control_plane": TO_RUN,
    "chromium": ("chromium",),
    "oracle": TO_BUILD,
    "helm": TO_BUILD,
    "prometheus": TO_BUILD,
    "rpc_program": TO_BUILD,
}
"""What the machine must have for a test that uses this fixture."""
CLUSTER = ("control_plane", "chromium", "oracle")
"""A test that uses one of these fixtures has the mark `cluster` by itself."""
LONG: Mapping[str, str] = {
    "karpenter_program": "Karpenter",
    "cluster_api_program": "Cluster API",
    "emulator": "an emulator of EC2",
    "helm": "Helm",
    "prometheus": "Prometheus",
    "rpc_program": "the autoscaler's gRPC client, in Go",
}
"""A test that uses one of these fixtures has the mark `long` by itself, with this reason."""
LONGEST = (
    "test_live",
    "test_consolidation_l",
    "test_karpenter_l",
    "test_cluster_api_l",
    "test_provisioning_kills",
    "test_standby",
)
"""Tests of the whole `cagrpc serve`, which would leave the other workers idle if they came last."""
_numbers = count(1)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = {} if required() else {name: reason for name, needed in NEEDS.items() if (reason := lacking(*needed))}
    for item in items:
        names = getattr(item, "fixturenames", ())
        if any(name in names for name in CLUSTER):
            item.add_marker("cluster")
        for mark in item.iter_markers("long"):
            if not mark.args:
                raise pytest.UsageError(f'{item.nodeid}: say why it is not run each day: @pytest.mark.long("...")')
        for name in names:
            if name in LONG:
                item.add_marker(pytest.mark.long(LONG[name]))
            if name in absent:
                item.add_marker(pytest.mark.skip(reason=LEFT_OUT + absent[name]))
    items.sort(key=_turn)  # a stable order: the same in every worker


def _turn(item: pytest.Item) -> int:
    if not item.get_closest_marker("cluster"):
        return 0
    return 1 if item.path.name.startswith(LONGEST) else 2


def built(module: GoModule) -> Path:
    """The directory of the programs, for a fixture: fails the test where the machine cannot build them."""
    reason = lacking(*TO_BUILD)
    if reason:
        pytest.fail(f"the tests of built programs are asked for, but {reason}", pytrace=False)
    try:
        return build(module)
    except CannotBuild as failed:
        pytest.fail(str(failed), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The reports of workers arrive here too, so they are counted, not the items."""
    reports = [report for report in terminalreporter.stats.get("skipped", ()) if LEFT_OUT in str(report.longrepr)]
    if reports:
        reason = str(reports[0].longrepr[2]).partition(LEFT_OUT)[2]
        tests = "1 test was" if len(reports) == 1 else f"{len(reports)} tests were"
        terminalreporter.write_line(f"{tests} left out: {reason}", yellow=True, bold=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that fails shows what its cluster has: it is gone when the failure is read."""
    report: Any = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if call.when == "call" and report.failed and isinstance(cluster, Cluster):
        with suppress(Exception):  # the API server may be away
            report.sections.append(("the cluster", cluster.summary()))
    return report


def running(release: Release, directory: Path) -> Iterator[ControlPlane]:
    """Yield a control plane of this release, for a fixture."""
    built(release.programs)
    plane = ControlPlane(directory, release)
    yield plane
    plane.close()


@pytest.fixture(scope="session")
def oracle() -> Path:
    """The program over the plug-ins of the control plane's kube-scheduler (tests/oracle)."""
    return built(ORACLE) / "oracle"


@pytest.fixture(scope="session")
def oldest_oracle() -> Path:
    """The same of the oldest release of which it can be built."""
    return built(OLDEST_ORACLE) / "oracle"


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for the whole session. A test that changes what others see uses `cluster`, which tidies up behind it."""
    reason = lacking()
    if reason:
        pytest.fail(f"the tests against a control plane are asked for, but {reason}", pytrace=False)
    yield from running(RELEASE, tmp_path_factory.mktemp("controlplane"))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm's client, with a home of its own."""
    return Helm(built(HELM) / "helm", tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The directory of `prometheus` and `promtool`."""
    return built(PROMETHEUS)


@pytest.fixture(scope="session")
def rpc_program() -> Path:
    """The server and the client of bench/rpc.py."""
    return built(RPC) / "rpc"


@pytest.fixture
def kubectl(control_plane: ControlPlane, tmp_path: Path) -> Kubectl:
    """kubectl of the control plane's version, with the plug-in."""
    directory = tmp_path / "kubectl"
    directory.mkdir()
    return Kubectl(built(KUBECTL), directory)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    """The control plane with a namespace of this test's own; afterwards no node, pod or namespace of it is left."""
    cluster = Cluster(control_plane, f"test-{next(_numbers)}")
    yield cluster
    control_plane.restore()
    cluster.tidy()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    client = cluster.plane.client()
    yield client
    client.close()


@pytest.fixture(scope="session")
def karpenter_program() -> Path:
    """Karpenter's core."""
    return built(KARPENTER) / "karpenter"


@pytest.fixture(scope="session")
def cluster_api_program() -> Path:
    """Cluster API's core."""
    return built(CLUSTER_API) / "core"


@pytest.fixture
def karpenter(cluster: Cluster, karpenter_program: Path, tmp_path: Path) -> Iterator[Karpenter]:
    """Karpenter's core beside the control plane; ask for it before `live`, which then ends first."""
    with running_karpenter(cluster, karpenter_program, tmp_path) as karpenter:
        yield karpenter


@pytest.fixture
def live(cluster: Cluster, tmp_path: Path) -> Iterator[Live]:
    """`cagrpc serve` in the cluster; its last process is killed before the cluster is tidied."""
    live = Live(cluster, tmp_path)
    yield live
    live.close()
