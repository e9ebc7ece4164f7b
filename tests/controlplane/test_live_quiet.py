"""What a server's log says while nothing is wrong, and labels that nodes get only after they have joined."""

from __future__ import annotations

import json

import yaml

from tests.support.controlplane.live import Live, group

SMALL = group("a", "4", "8Gi", 0.2)


def test_a_quiet_servers_log_stays_short(live: Live) -> None:
    kubeconfig = live.cluster.plane.kubeconfig()
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {"server": live.cluster.plane.server, "insecure-skip-tls-verify": True}
    unverified = live.directory / "unverified.kubeconfig"
    unverified.write_text(yaml.safe_dump(document))
    live.configure([{"name": "all", "node_groups": [SMALL]}], kubeconfig=str(unverified))
    live.start()
    live.cluster.create_pod("huge", {"cpu": "900"})
    live.cluster.create_pod("small", {"cpu": "1"})
    live.wait_for_running(1)
    live.wait_until_settled()
    before = live.serving.log().splitlines()
    rounds = len(live.serving.get("/plans"))
    for number in range(5):  # they have room: there is nothing to be done for them
        live.cluster.create_pod(f"more-{number}", {"cpu": "100m"})
    live.wait_for_running(6)
    live.wait_for(lambda: len(live.serving.get("/plans")) >= rounds, "its plans are kept")
    lines = live.serving.log().splitlines()
    messages = [json.loads(line) for line in lines]
    warnings = [each["message"] for each in messages if each["level"] not in ("debug", "info")]
    assert [each.partition(": ")[2].partition(" (")[0] for each in warnings] == ["its certificate is not verified"]
    assert len(lines) - len(before) <= 3, lines[len(before) :]
    assert len(lines) < 25, lines
    told = [each["message"] for each in messages if "message" in each]
    assert [each for each in told if each != each.strip()] == []
    assert [each for each in told if "does not serve" in each] == [], "kinds that a cluster lacks are no news"


def test_pods_that_require_a_label_that_comes_late_run_on_the_node_that_gets_it(live: Live) -> None:
    gpu = {**group("gpu", "4", "8Gi", 0.5), "post_registration_labels": {"example.com/gpu": "a10g"}}
    live.configure([{"name": "all", "node_groups": [SMALL, gpu]}])
    live.start()
    for number in range(2):
        live.cluster.create_pod(f"p-{number}", {"cpu": "3"}, nodeSelector={"example.com/gpu": "a10g"})
    live.wait_for_running(2)
    live.wait_until_settled()
    assert live.pools() == {"gpu": 2}
    assert live.phases() == ["done"], "planned once: no node was ordered for what the first ones would get"
