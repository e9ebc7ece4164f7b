"""What pytest knows of the control plane: the fixtures, the marker, and what the summary reports of tests left out.

Each worker of pytest-xdist has a control plane of its own, for tests restart its parts and own all of its nodes. These
tests come last, the longest of them first: the programs are built while all other tests run, and no worker waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from cagrpc.kube.client.client import Client
from tests.support.controlplane.binaries import (
    CLUSTER_API,
    CONTROL_PLANE,
    HELM,
    KARPENTER,
    KUBECTL,
    PROMETHEUS,
    TO_BUILD,
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
from tests.support.controlplane.plane import ControlPlane

LEFT_OUT = "no control plane here: "
MARKER = "controlplane"
LONGEST = (
    "test_live",
    "test_consolidation_l",
    "test_karpenter_l",
    "test_cluster_api_l",
    "test_provisioning_kills",
    "test_standby",
)
"""Tests of the whole `cagrpc serve`, which would leave the other workers idle if they came last."""
BUILT_FOR: dict[str, GoModule] = {
    "control_plane": CONTROL_PLANE,
    "cluster_api": CLUSTER_API,
    "karpenter": KARPENTER,
    "helm": HELM,
    "kubectl": KUBECTL,
    "prometheus": PROMETHEUS,
}
"""The programs that a test with this fixture needs."""
_WITHOUT_PLANE = {"helm", "prometheus"}
_numbers = count(1)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None if required() else lacking()
    to_build = None if required() else lacking(*TO_BUILD)
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "control_plane" in names:
            item.add_marker(MARKER)
            if reason:
                item.add_marker(pytest.mark.skip(reason=LEFT_OUT + reason))
        elif to_build and not _WITHOUT_PLANE.isdisjoint(names):
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT + to_build))
    items.sort(key=_turn)  # a stable order: the same in every worker


def _turn(item: pytest.Item) -> int:
    if not item.get_closest_marker(MARKER):
        return 0 if _WITHOUT_PLANE.isdisjoint(getattr(item, "fixturenames", ())) else 1
    if item.get_closest_marker("alone"):
        return 4  # so that no worker waits for a long one to end
    return 2 if item.path.name.startswith(LONGEST) else 3


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs while other tests run, in one worker, if tests that need them are selected. At the usual
    priority: a lower one would leave the build to the end, when all workers wait for it."""
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    names = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted = [module for fixture, module in BUILT_FOR.items() if fixture in names]
    if first and wanted and not session.config.option.collectonly and not lacking(*TO_BUILD):
        Thread(target=_build, args=(wanted,), name="build of the control plane", daemon=True).start()


def _build(modules: Sequence[GoModule]) -> None:
    with suppress(CannotBuild):  # the fixture tries again, and reports it
        for module in modules:
            build(module)


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
        tests = "1 control-plane test was" if len(reports) == 1 else f"{len(reports)} control-plane tests were"
        terminalreporter.write_line(f"{tests} left out: {reason}", yellow=True, bold=True)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for the whole session. A test that changes what others see uses `cluster`, which tidies up behind it."""
    reason = lacking()
    if reason:
        pytest.fail(f"the tests against a control plane are asked for, but {reason}", pytrace=False)
    built(CONTROL_PLANE)
    plane = ControlPlane(tmp_path_factory.mktemp("controlplane"))
    yield plane
    plane.close()


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm's client, with a home of its own."""
    return Helm(built(HELM) / "helm", tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The directory of `prometheus` and `promtool`."""
    return built(PROMETHEUS)


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


@pytest.fixture
def karpenter(cluster: Cluster, tmp_path: Path) -> Iterator[Karpenter]:
    """Karpenter's core beside the control plane; ask for it before `live`, which then ends first."""
    built(KARPENTER)
    with running_karpenter(cluster, tmp_path) as karpenter:
        yield karpenter


@pytest.fixture
def live(cluster: Cluster, tmp_path: Path) -> Iterator[Live]:
    """`cagrpc serve` in the cluster; its last process is killed before the cluster is tidied."""
    live = Live(cluster, tmp_path)
    yield live
    live.close()
