"""What pytest knows of the control plane: the fixtures, and what the summary says where its tests were left out.

Under pytest-xdist the tests of this directory are two pieces of work, each for one worker with a control plane of its
own: they restart its parts and own all of its nodes, so they could not share it at the same time. With another `--dist`
than `load`, the default, each worker has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cagrpc.kube.client.client import Client
from tests.controlplane.binaries import CannotBuild, build, lacking, required
from tests.controlplane.cluster import Cluster
from tests.controlplane.live import Live
from tests.controlplane.plane import ControlPlane

LEFT_OUT = "no control plane here: "
HERE = "tests/controlplane/"
LIVE = "test_live"
"""Tests of the whole `cagrpc serve`: they take about as long as all others."""
_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None if required() else lacking()
    for item in items:
        if reason and "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT + reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of this directory are two pieces of work, the first and largest; any other test is one of its own."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - pytest runs without it too

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _piece
    return scheduler


def _piece(nodeid: str) -> str:
    if not nodeid.startswith(HERE):
        return nodeid
    return f"{HERE}{LIVE if nodeid.startswith(HERE + LIVE) else ''}"


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
    try:
        build()
    except CannotBuild as failed:
        pytest.fail(str(failed), pytrace=False)
    plane = ControlPlane(tmp_path_factory.mktemp("controlplane"))
    yield plane
    plane.close()


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
def live(cluster: Cluster, tmp_path: Path) -> Iterator[Live]:
    """`cagrpc serve` in the cluster; its last process is killed before the cluster is tidied."""
    live = Live(cluster, tmp_path)
    yield live
    live.close()
