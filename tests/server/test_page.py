"""The page of a real `cagrpc serve` with the simulated backend, in a browser: it follows what the autoscaler does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from tests.support.browser import Browser
from tests.support.grpc_servers import GrpcClient, asking, option, pod
from tests.support.serving import SMALL, configuration

EVIL = "<img src=x onerror=window.evil=1>"
UNLIKE = {**SMALL, "id": "large", "price_usd_per_hour": 0.4}


def test_it_follows_the_server_without_being_loaded_again(browser: Browser, tmp_path: Path, started: Any) -> None:
    provisioners = [
        {"name": "first", "weight": 20, "node_groups": [dict(SMALL)]},
        {"name": "second", "weight": 10, "node_groups": [UNLIKE]},
    ]
    written = configuration(tmp_path / "cagrpc.yaml", provisioners, {"large": {"boot": "1h"}})
    serving = started("--config", written)
    with browser.tab() as tab, serving.provider() as provider:
        tab.open(f"http://{serving.endpoints['http']}/")
        tab.wait(lambda: tab.text("#connection") == "Live" and "weight 20" in tab.text("#fleet"), "the fleet is there")
        assert "2 node groups have no node" in tab.text("#fleet")
        for empty in ("waiting", "increments", "decisions", "requests", "slack", "consolidation"):
            assert not tab.evaluate(f"document.getElementById('{empty}').checkVisibility()"), empty
            assert not tab.evaluate(f"document.querySelector('nav a[href=\"#{empty}\"]').checkVisibility()"), empty
        tab.evaluate("window.loaded = 'once'")

        authority = (serving.certificates / "ca.crt").read_bytes()
        with grpc.secure_channel(serving.endpoints["expander"], grpc.ssl_channel_credentials(authority)) as channel:
            pods = [pod(f"evil-{EVIL}")]
            GrpcClient(channel).ok("BestOptions", asking(option("small", 2, pods), option("large", 2, pods)))
        provider.increase("small", 2)
        provider.increase("large", 3)
        tab.wait(lambda: "small +2" in tab.text("#increments"), "the increments are there")
        tab.wait(lambda: "creating, 0 of 3 nodes" in tab.text("#increments"), "one is in flight")
        tab.wait(lambda: "done" in tab.text("#increments"), "the other one is done")
        tab.wait(lambda: "$1.40/h" in tab.text("#now"), "the fleet has grown")
        assert tab.evaluate("[...document.querySelectorAll('#fleet tbody')].at(-1).innerText").split() == [
            *("weight", "20", "first", "1", "2", "2", "0", "0", "0", "$0.20/h"),
            *("weight", "10", "second", "1", "3", "0", "3", "0", "0", "$1.20/h"),
        ]
        tab.evaluate("document.querySelector('#decisions details').open = true")
        tab.wait(lambda: f"ns/evil-{EVIL}" in tab.text("#decisions"), "the decision is there, and its pods are text")
        assert tab.evaluate("window.loaded") == "once"
        assert tab.evaluate("window.evil") is None
        assert not tab.complaints

        assert serving.stop() == 0
        assert "ERROR" not in serving.log()
        tab.wait(lambda: tab.text("#connection").startswith("Not connected since"), "it says that it is not connected")
        assert "weight 20" in tab.text("#fleet")
