"""A server starts with the configuration that `cagrpc config init` writes, whichever cluster it has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cagrpc.backends.karpenter.pools import NODE_POOLS
from cagrpc.cli.main import main
from cagrpc.config.load import load_settings
from cagrpc.config.schema.listen import Address
from cagrpc.server.server import Server
from tests.backends.karpenter.test_importing import GPU
from tests.offline.test_discovery import DEPLOYMENTS, KINDS, container, workload
from tests.support.api_server import ApiServer, api_server
from tests.support.karpenter import KINDS as KARPENTERS
from tests.support.serving import ask, kubeconfig_of

FROZEN: dict[str, Any] = {
    "limits": {"cpu": "0"},
    "disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]},
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server(*KINDS, *KARPENTERS) as api:
        yield api


def own_provider(api: ApiServer) -> None:
    workload(api, DEPLOYMENTS, "cluster-autoscaler", container("--cloud-provider=aws", "--expander=least-waste"))


def frozen_pools(api: ApiServer) -> None:
    api.put(f"{NODE_POOLS}/gpu", {**GPU, "spec": {**GPU["spec"], **FROZEN}})


def pools(api: ApiServer) -> None:
    api.put(f"{NODE_POOLS}/gpu", GPU)


def neither(api: ApiServer) -> None:
    del api


@pytest.mark.parametrize(
    ("has", "provides"),
    [(own_provider, False), (frozen_pools, True), (pools, False), (neither, False)],
)
def test_it_starts(has: Callable[[ApiServer], None], provides: bool, api: ApiServer, tmp_path: Path) -> None:
    has(api)
    file = tmp_path / "cagrpc.yaml"
    kubeconfig = kubeconfig_of(tmp_path, api.url)
    assert main(["config", "init", "--kubeconfig", str(kubeconfig), "--output", str(file)]) == 0
    free = Address("127.0.0.1", 0)
    settings = load_settings(file)
    assert (settings.provider is not None) == provides
    settings = replace(settings, provider=settings.provider and free, expander=free, http=free)
    server = Server(settings)
    server.start()
    try:
        assert ask(server, "/healthz")[0] == 200
        assert bool(server.endpoints.provider) == provides
        assert server.endpoints.expander
        assert not server.failure
    finally:
        server.stop()
