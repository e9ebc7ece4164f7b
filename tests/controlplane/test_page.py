"""The page in a browser, of a server that plans in a real cluster: what the guide shows of it, and its token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.test_http_access import Secured, secured
from tests.support.artifacts import kept
from tests.support.browser import Browser, Tab
from tests.support.controlplane.deployed import install_crds, remove_crds
from tests.support.controlplane.live import GPU, Live, group
from tests.support.controlplane.processes import wait_for
from tests.support.controlplane.provisioning import CHECK, PlaneRequests
from tests.support.serving import SMALL

__all__ = ["secured"]  # a fixture

IMAGES = Path(__file__).parents[2] / "docs" / "guides" / "images"
PNG = b"\x89PNG\r\n\x1a\n"
TAINT = {"key": GPU, "effect": "NoSchedule"}
TOLERATES: dict[str, Any] = {"tolerations": [{**TAINT, "operator": "Exists"}]}
PROVISIONERS = [
    {"name": "general", "weight": 100, "node_groups": [group("m7i.xlarge", "4", "16Gi", 0.2)]},
    {"name": "large", "weight": 50, "node_groups": [group("r7i.4xlarge", "16", "128Gi", 1.06)]},
    {
        "name": "gpu",
        "weight": 10,
        "taints": [TAINT],
        "node_groups": [group("g6.2xlarge", "8", "32Gi", 0.98, gpus=1, max_size=2)],
    },
]
WORKLOADS: list[tuple[str, int, dict[str, str]]] = [
    ("web", 14, {"cpu": "900m", "memory": "1Gi"}),
    ("cache", 5, {"cpu": "500m", "memory": "9Gi"}),
    ("queue", 3, {"cpu": "2", "memory": "6Gi"}),
]
SLACK = {
    "targets": [{"name": "web", "fixed": [{"name": "small", "count": 2, "requests": {"cpu": 1, "memory": "1Gi"}}]}]
}


@pytest.fixture
def planning(live: Live) -> Iterator[PlaneRequests]:
    requests = PlaneRequests(live)
    install_crds(live.cluster.admin, "slack-crds.yaml")
    behaviours = {"r7i.4xlarge": {"boot": "1h"}}
    live.configure(PROVISIONERS, behaviours, slack=SLACK, namespace=live.cluster.namespace)
    live.start()
    yield requests
    live.close()
    requests.close()
    remove_crds(live.cluster.admin, "slack-crds.yaml")


def test_it_shows_what_is_planned_and_why_pods_wait(browser: Browser, planning: PlaneRequests) -> None:
    """With CAGRPC_SCREENSHOTS=1 the pictures of the documentation are made anew."""
    live, cluster = planning.live, planning.cluster
    with browser.tab(1200, 1500) as tab:
        tab.open(f"http://{live.serving.endpoints['http']}/")
        for number, (name, replicas, requests) in enumerate(WORKLOADS, 1):
            cluster.create_deployment(name, replicas, requests)
            live.wait_for_running(sum(each[1] for each in WORKLOADS[:number]))
        planning.template("worker", {"cpu": "2", "memory": "4Gi"})
        planning.create("nightly", {"worker": 40}, CHECK)
        for number in range(4):
            cluster.create_pod(f"trainer-{number}", {"cpu": "4", "memory": "8Gi", GPU: "1"}, **TOLERATES)
        for number in range(3):
            cluster.create_pod(f"index-{number}", {"cpu": "8", "memory": "48Gi"})
        _wait(live, tab, "#waiting", "raise maxSize of g6.2xlarge from 2 to 4")
        _wait(live, tab, "#increments", "creating, 0 of")
        _wait(live, tab, "#requests", "nightly")
        _wait(live, tab, "#slack", "web")
        assert "trainer-" in tab.text("#waiting")
        assert "proven to cost at least" in tab.text("#rounds")
        assert int(tab.evaluate("document.querySelectorAll('#rounds svg rect.proven').length")) >= 2
        assert not tab.complaints
        live.wait_for(lambda: "ready" not in live.phases(), "what has come is released")
        _picture(tab, "page.png", 1000, 1900)
        _picture(tab, "page-phone.png", 360, 760)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360


def _wait(live: Live, tab: Tab, selector: str, text: str) -> None:
    live.wait_for(lambda: text in tab.text(selector), f"{text!r} is in {selector}")


def _picture(tab: Tab, name: str, width: int, height: int) -> None:
    shot = IMAGES / name if os.environ.get("CAGRPC_SCREENSHOTS") == "1" else kept(name)
    tab.size(width, height)
    tab.screenshot(shot)
    assert shot.read_bytes().startswith(PNG)
    assert len(shot.read_bytes()) > 20_000  # an empty page has far less


def test_readers_are_shown_it_with_their_token_and_others_are_told(browser: Browser, secured: Secured) -> None:
    reader, other = secured.account("reader", "cagrpc-reader"), secured.account("other")
    wait_for(lambda: secured.ask("/plans", reader)[0] == 200, "the reader is known")
    with browser.tab() as tab:
        tab.call("Security.setIgnoreCertificateErrors", ignore=True)  # of the development authority
        tab.open(f"https://{secured.address}/")
        tab.wait(lambda: "a bearer token is needed" in tab.text("#refusal"), "it asks for one")
        tab.write(other)
        tab.press("Enter")
        tab.wait(lambda: ":other may not get /events; the ClusterRole cagrpc-reader" in tab.text("#refusal"), "why not")
        tab.write(reader)
        tab.press("Enter")
        tab.wait(lambda: tab.text("#connection") == "Live" and "weight 0" in tab.text("#fleet"), "it is shown")
        assert SMALL["id"] not in tab.text("#fleet")  # it has no nodes
