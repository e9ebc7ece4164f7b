"""The chart's dashboard and rules, evaluated by a real Prometheus that scrapes a server over TLS with a reader's token,
while pods come, nodes are made for them, and the autoscaler calls."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cagrpc.api.gen import expander_pb2
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.services.grpc import expander
from tests.support.controlplane.accounts import create_account, remove_bindings
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import apply, documents, install_crds, remove, remove_crds
from tests.support.controlplane.live import group
from tests.support.controlplane.processes import wait_for
from tests.support.prometheus import Prometheus, scraping
from tests.support.serving import Serving, configuration, serve

FILES = Path(__file__).parents[2] / "deploy" / "chart" / "files"
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
SLACK = {
    "targets": [{"name": "web", "fixed": [{"name": "small", "count": 1, "requests": {"cpu": 1, "memory": "1Gi"}}]}]
}
EMPTY_ON_PURPOSE = {
    ("Instances of nobody", "A"): "there are orphans only after a journal was lost",
    ("ProvisioningRequests", "A"): "nobody asks for one here; tests/controlplane/test_provisioning_requests.py does",
    ("From request to provisioned", "A"): "the same",
    ("Steps", "A"): "a dry run begins none; tests/controllers/consolidation/test_controller.py has some",
    ("For Kueue", "A"): "Kueue is not installed here; tests/controlplane/test_kueue.py has it",
}
VARIABLES = {"$namespace": "test", "$job": "cagrpc", "$__rate_interval": "1m"}


class _Watched:
    """A server, its reader's token, and what plays its autoscaler."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        written = configuration(
            directory / "cagrpc.yaml",
            [{"name": "all", "node_groups": [group("a", "4", "8Gi", 0.2)]}],
            drive="plan",
            kubernetes={
                "kubeconfig": str(cluster.plane.kubeconfig()),
                "journal": "sqlite",
                "namespace": cluster.namespace,
            },
            planner={"idle": "1s", "window": "1m"},
            provisioning_requests={},
            slack=SLACK,
            consolidation={"every": "1s", "budget": "1s"},
            http={"insecure": False},
        )
        create_account(cluster, "prometheus", "cagrpc-reader")
        self.token = directory / "token"
        self.token.write_text(cluster.plane.token_of(cluster.namespace, "prometheus"))
        self.serving: Serving = serve(directory / "state", "--config", written)
        self.authority = self.serving.certificates / "ca.crt"

    def get(self, path: str, accept: str = "*/*") -> str:
        headers = {"Authorization": f"Bearer {self.token.read_text()}", "Accept": accept}
        request = urllib.request.Request(f"https://{self.serving.endpoints['http']}{path}", headers=headers)
        trusted = ssl.create_default_context(cafile=self.authority)
        with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
            return str(answer.read().decode())

    def scrape(self) -> dict[str, Any]:
        return {
            "scheme": "https",
            "authorization": {"credentials_file": str(self.token)},
            "tls_config": {"ca_file": str(self.authority)},
        }

    def call(self) -> None:
        """As the autoscaler does in a loop of its own."""
        with self.serving.provider() as provider:
            provider._call("Refresh", pb.RefreshRequest(), pb.RefreshResponse)
            of_nobody = pb.PricingNodePriceRequest(node=pb.ExternalGrpcNode(name="not-ours"))
            of_nobody.endTimestamp.seconds = 3600
            with pytest.raises(grpc.RpcError) as refusal:
                provider._call("PricingNodePrice", of_nobody, pb.PricingNodePriceResponse)
            assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
        credentials = grpc.ssl_channel_credentials(self.authority.read_bytes())
        with grpc.secure_channel(self.serving.endpoints["expander"], credentials) as channel:
            ask = channel.unary_unary(
                f"/{expander.SERVICE}/BestOptions", None, expander_pb2.BestOptionsResponse.FromString
            )
            ask(expander_pb2.BestOptionsRequest().SerializeToString(), timeout=5)

    def run_pods(self, wave: int) -> None:
        """Three that need a node each, until they run."""
        for number in range(3):
            self.cluster.create_pod(f"wave-{wave}-{number}", {"cpu": "3", "memory": "1Gi"})
        wait_for(lambda: self._running() == 3 * wave, f"the pods of wave {wave} run")

    def _running(self) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.cluster.pods())


@pytest.fixture
def watched(cluster: Cluster, tmp_path: Path) -> Iterator[_Watched]:
    for document in documents("rbac.yaml"):
        apply(cluster.admin, document)
    install_crds(cluster.admin, "slack-crds.yaml")
    watched = _Watched(cluster, tmp_path)
    yield watched
    watched.serving.stop()
    remove_bindings(cluster)
    remove_crds(cluster.admin, "slack-crds.yaml")
    remove(cluster.admin, "rbac.yaml")


def _queries() -> dict[tuple[str, str], str]:
    """By panel and target, with the dashboard's variables replaced."""
    found = {}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            assert "$" not in expression
            found[panel["title"], target["refId"]] = expression
    return found


def test_every_panel_shows_something_and_no_rule_fails(watched: _Watched, prometheus: Path, tmp_path: Path) -> None:
    server = watched.serving.endpoints["http"]
    with scraping(prometheus, tmp_path, watched.scrape(), server, FILES / "rules.yaml") as scraper:
        wait_for(lambda: scraper.values('up{job="cagrpc"}') == [1.0], "the server is scraped")
        for wave in (1, 2):  # a rate takes two: the first makes the series
            watched.call()
            watched.run_pods(wave)
            done = 'sum(cagrpc_increment_phase_duration_seconds_count{phase="done"})'
            wait_for(lambda: sum(scraper.values(done)) >= wave, "the increment is released")  # noqa: B023 - at once
            counted = 'sum(cagrpc_rpc_total{method="BestOptions"})'
            wait_for(lambda: sum(scraper.values(counted)) == wave, "the call is scraped")  # noqa: B023 - at once
            bound = "sum(cagrpc_pod_bound_duration_seconds_count)"
            wait_for(lambda: sum(scraper.values(bound)) == 3 * wave, "the pods are scraped")  # noqa: B023 - at once
        queries = _queries()
        assert EMPTY_ON_PURPOSE.keys() <= queries.keys()
        for of, expression in queries.items():
            if of in EMPTY_ON_PURPOSE:
                assert scraper.values(expression) == [], f"{of} is not empty any more: take it off the list"
            else:
                scraper.wait_for(expression, f"{of} shows something")

        _check_exemplars(watched, scraper)
        _check_rules(scraper)
    linted = subprocess.run(
        [prometheus / "promtool", "check", "metrics"],
        input=watched.get("/metrics"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")


def _check_exemplars(watched: _Watched, scraper: Prometheus) -> None:
    known = {each["id"] for each in json.loads(watched.get("/increments"))}
    for name in (
        "cagrpc_increment_phase_duration_seconds_bucket",
        "cagrpc_pod_bound_duration_seconds_bucket",
        "cagrpc_planning_round_duration_seconds_bucket",
    ):
        series = scraper.ask("/api/v1/query_exemplars", query=name, start="0", end="9999999999")
        ids = {exemplar["labels"]["increment_id"] for each in series for exemplar in each["exemplars"]}
        assert ids, name
        assert ids <= known, name


def _check_rules(scraper: Prometheus) -> None:
    rules = [rule for group_ in scraper.ask("/api/v1/rules")["groups"] for rule in group_["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, [rule["lastError"] for rule in rules if rule.get("lastError")]
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_variables_of_the_dashboard_are_those_that_queries_use() -> None:
    names = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "namespace", "job"}
    ids = [each["id"] for each in DASHBOARD["panels"]]
    assert len({*ids}) == len(ids)
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            for selector in re.findall(r"(?:cagrpc|process)_\w+(\{[^}]*\}|)", target["expr"]):
                assert selector.startswith('{namespace=~"$namespace",job=~"$job"'), target["expr"]
