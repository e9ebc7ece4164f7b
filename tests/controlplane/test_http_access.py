"""Who reads the HTTP side of a server in a cluster: the API server knows the tokens and the rights of deploy/, and the
server has no right beside its own."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane.accounts import bind, create_account, remove_bindings
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import apply, documents, remove
from tests.support.controlplane.processes import wait_for
from tests.support.serving import SMALL, Serving, cagrpc, configuration, serve

FILES = ("rbac.yaml", "rbac-simulated-nodes.yaml")


class Secured:
    """A server that listens on a loopback address, with TLS and tokens all the same."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        kubeconfig = cluster.plane.kubeconfig_of_service_account("cagrpc", "cagrpc")
        written = configuration(
            directory / "cagrpc.yaml",
            [{"name": "one", "node_groups": [dict(SMALL)]}],
            drive="assist",
            kubernetes={"kubeconfig": str(kubeconfig), "journal": "sqlite", "simulated_nodes": False},
            http={"insecure": False},
        )
        self.serving: Serving = serve(directory / "state", "--config", written)
        self.address = self.serving.endpoints["http"]
        self.authority = self.serving.certificates / "ca.crt"

    def account(self, name: str, *roles: str) -> str:
        """Return a token of a new ServiceAccount with these ClusterRoles."""
        create_account(self._cluster, name, *roles)
        return self._cluster.plane.token_of(self._cluster.namespace, name)

    def bind(self, name: str, role: str) -> None:
        bind(self._cluster, name, role)

    def ask(self, path: str, token: str = "", method: str = "GET", body: Any = None) -> tuple[int, str]:
        trusted = ssl.create_default_context(cafile=self.authority)
        connection = http.client.HTTPSConnection(self.address, timeout=20, context=trusted)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@contextmanager
def secured_server(cluster: Cluster, directory: Path) -> Iterator[Secured]:
    """A server with the rights of deploy/, which go with it."""
    for name in FILES:
        for document in documents(name):
            apply(cluster.admin, document)
    secured = Secured(cluster, directory)
    yield secured
    assert secured.serving.stop() == 0, secured.serving.log()
    remove_bindings(cluster)
    remove(cluster.admin, *FILES)


@pytest.fixture
def secured(cluster: Cluster, tmp_path: Path) -> Iterator[Secured]:
    with secured_server(cluster, tmp_path) as secured:
        yield secured


def test_readers_read_and_others_are_refused(secured: Secured, tmp_path: Path) -> None:
    reader, other = secured.account("reader", "cagrpc-reader"), secured.account("other")
    assert secured.ask("/healthz") == (200, "ok\n")
    assert secured.ask("/plans")[0] == 401
    assert secured.ask("/plans", f"{reader}x")[0] == 401

    status, text = secured.ask("/metrics", other)
    assert status == 403
    assert ":other may not get /metrics; the ClusterRole cagrpc-reader" in text
    # RBAC's authorizer of the API server learns of a new binding by a watch.
    wait_for(lambda: secured.ask("/metrics", reader)[0] == 200, "the reader is known")
    for page in (
        "/status",
        "/decisions",
        "/nodegroups",
        "/increments",
        "/nodes",
        "/history",
        "/log",
        "/plans",
        "/provisioningrequests",
        "/slack",
        "/simulation",
    ):
        wait_for(lambda page=page: secured.ask(page, reader)[0] == 200, f"the reader reads {page}")  # type: ignore[misc]
    assert secured.ask("/anything", reader)[0] == 403

    # To read the simulation is not to change it.
    before = json.loads(secured.ask("/simulation", reader)[1])
    assert secured.ask("/simulation", reader, "PUT", {"small": {"stock": 0}})[0] == 403
    assert json.loads(secured.ask("/simulation", reader)[1]) == before
    secured.bind("other", "cagrpc-simulation")
    wait_for(lambda: secured.ask("/simulation", other, "PUT", {"small": {"stock": 0}})[0] == 200, "the right is known")
    assert json.loads(secured.ask("/simulation", reader)[1]) != before
    assert secured.ask("/plans", other)[0] == 403

    (tmp_path / "token").write_text(reader)
    flags = ("--http", f"https://{secured.address}", "--http-ca", secured.authority)
    done = cagrpc("status", *flags, "--token-file", tmp_path / "token", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert "certificates" in json.loads(done.stdout)["status"]
    refused = cagrpc("status", *flags)
    assert refused.returncode != 0
    assert "answers 401 Unauthorized: a bearer token is needed" in refused.stderr
