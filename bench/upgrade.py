"""An upgrade that rolls, and one that is taken back: two replicas of `cagrpc serve` over a real API server, of an older
version and of this one, which lead in turn.

    python -m bench.upgrade --old CHECKOUT [--handovers 4] [--verbose]

CHECKOUT is a working tree of the older version with an environment `.venv` of its own. The older one leads first, and
the configuration is written as it reads it. At each handover four things are under way: an increment for pods of a
Deployment, a ProvisioningRequest, slack that was taken by pods and comes back, and a node that the autoscaler removes.
The leader is told to end or, every other time, killed; the other version has stood by, finishes what was begun, and
pods consume what was booked before.
Whatever must not be is named at the end, and makes the exit code 1: an instance that was ordered twice or for nothing,
an increment that was rolled back, a request, a booking, slack or a deletion that is lost, an error in a log.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.real_cluster import control_plane
from bench.table import machine, machine_line
from tests.support.controlplane import slack
from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.deployed import clear_journal, install_crds
from tests.support.controlplane.live import group
from tests.support.controlplane.pair import INCREMENTS, Pair, wait_until_it_stands_by, wait_until_ready
from tests.support.controlplane.provisioning import ClusterRequests
from tests.support.serving import Serving, Start

THIS = Path(__file__).resolve().parents[1]
BOOT_SECONDS = 20.0
"""Longer than a handover to a standby that has seen its leader end."""
WEB, REQUESTED, RESERVED = {"cpu": "1500m"}, {"cpu": "3"}, {"cpu": "3", "memory": "1Gi"}
EACH = 2
"""Pods of each kind, and so nodes: no two fit on one."""
PROVISIONERS = [
    {"name": "web", "node_groups": [group("web", "2", "4Gi", 0.1)]},
    {"name": "requests", "node_groups": [group("requests", "4", "8Gi", 0.2)]},
    {"name": "single", "node_groups": [group("single", "2", "4Gi", 0.1)]},
    {"name": "slack", "node_groups": [group("slack", "4", "8Gi", 0.2)]},
]
SECTIONS: Mapping[str, Any] = {
    "planner": {"idle_seconds": 2},
    "provisioning_requests": {"booking_seconds": 1800},
    "slack": {
        "targets": [
            {
                "name": "reserve",
                "provisioner": "slack",
                "fixed": [{"name": "large", "count": EACH, "requests": dict(RESERVED)}],
            }
        ]
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="a checkout of the older version")
    parser.add_argument("--handovers", type=int, default=4)
    parser.add_argument("--verbose", action="store_true", help="the logs of all servers")
    options = parser.parse_args()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    with control_plane() as (plane, directory):
        servers = directory / "servers"
        servers.mkdir()
        upgrade = Upgrade(Cluster(plane, "upgrade"), servers)
        try:
            violations = upgrade.run({"old": options.old.resolve(), "new": THIS}, options.handovers)
        finally:
            if options.verbose:
                print(*(each.log() for each in upgrade.pair.servers), sep="\n")
            upgrade.close()
    print(*(violations or ["nothing that must not be"]), sep="\n")
    return 1 if violations else 0


class Upgrade:
    """Two versions that lead in turn, and what is asked of them meanwhile."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        install_crds(cluster.admin)
        slack.install(cluster.admin)
        behaviour = {"boot_seconds": BOOT_SECONDS, "delete_seconds": BOOT_SECONDS}
        self.pair = Pair(cluster, directory, PROVISIONERS, behaviour, **SECTIONS)
        self._cluster = cluster
        self._requests = ClusterRequests(cluster)
        self._requests.template("worker", REQUESTED, nodeSelector={"pool": "requests"})
        self._pods = 0
        self._nodes = 0
        """Those that were needed so far, with those that were removed since."""
        self._removed = 0

    def run(self, checkouts: Mapping[str, Path], handovers: int) -> list[str]:
        """Return what must not be."""
        names = [("old", "new")[number % 2] for number in range(handovers + 1)]
        leader = self._start(checkouts[names[0]])
        wait_until_ready(leader)
        for number, (before, after) in enumerate(pairwise(names)):
            standby = self._start(checkouts[after])
            wait_until_it_stands_by(standby)
            self._begin(number, leader)
            kills = number % 2 == 1
            if kills:
                leader.process.kill()
                leader.process.wait()
            else:
                assert leader.stop() == 0, leader.log()[-4000:]
            began = time.monotonic()
            wait_until_ready(standby)
            took = time.monotonic() - began
            self._finish(number)
            how = "killed" if kills else "told to end"
            print(
                f"{before} -> {after}: {before} is {how}, {after} leads after {took:.1f} s; all is done after"
                f" {time.monotonic() - began:.0f} s: {self.pair.ordered()} instances, {self._pods} pods run",
                flush=True,
            )
            leader = standby
        return list(self._violations(names))

    def close(self) -> None:
        self.pair.close()
        admin = self._cluster.admin
        self._requests.close()
        slack.remove(admin)
        clear_journal(admin)
        self._cluster.tidy()

    def _start(self, checkout: Path) -> Serving:
        return self.pair.start(start=_started_in(checkout))

    def _begin(self, number: int, leader: Serving) -> None:
        """Ask for something new of each kind, and wait until all of it is ordered and nothing has come."""
        nodes = 3 * EACH + 1
        if number == 0:
            self._cluster.create_deployment("web", EACH, WEB, nodeSelector={"pool": "web"})
        else:
            self.pair.scale((number + 1) * EACH)
            self._burst(number)
            self._remove(f"single-{number - 1}", leader)
        self._cluster.create_pod(f"single-{number}", WEB, nodeSelector={"pool": "single"})
        self._pods += EACH + 1
        self._requests.create(f"gang-{number}", {"worker": EACH})
        self._nodes += nodes
        self.pair.wait_for(lambda: self.pair.ordered() == self._nodes, f"{self._nodes} instances are ordered")
        phases = self.pair.in_flight()
        assert phases, "increments are under way"
        assert set(phases) <= {"planned", "creating"}, phases
        conditions = self._requests.conditions(f"gang-{number}")
        assert conditions.get("Provisioned", {}).get("status") != "True", conditions

    def _burst(self, number: int) -> None:
        """Let pods take the slack, so that it has to come back."""
        for each in range(EACH):
            self._cluster.create_pod(f"burst-{number}-{each}", RESERVED, nodeSelector={"pool": "slack"})
        self._pods += EACH

    def _remove(self, pod: str, leader: Serving) -> None:
        """Remove a node whose pod has gone, as the cluster-autoscaler does."""
        admin, path = self._cluster.admin, self._cluster.path("pods", pod)
        node = f"{NODES}/{admin.get(path)['spec']['nodeName']}"
        admin.merge(node, {"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}})
        admin.delete(path, gracePeriodSeconds=0)
        with leader.provider() as provider:
            provider.delete("single", admin.get(node)["spec"]["providerID"])
        self._pods -= 1
        self._removed += 1

    def _finish(self, number: int) -> None:
        """Wait until the new leader has finished all of it, and consume what was booked."""
        name = f"gang-{number}"
        self.pair.wait_for_running(self._pods)
        self.pair.wait_for(
            lambda: self._requests.conditions(name).get("Provisioned", {}).get("status") == "True",
            f"{name} is provisioned",
        )
        self.pair.wait_for(lambda: self._held() == EACH, f"{EACH} placeholders are held")
        self.pair.wait_for(lambda: not self.pair.in_flight(), "no increment is under way")
        there = self._nodes - self._removed
        self.pair.wait_for(lambda: len(self.pair.nodes()) == there, f"{there} Nodes are there")
        if number:  # what was booked under the leader before
            for each in range(EACH):
                pod = f"worker-{number - 1}-{each}"
                self._requests.consume(f"gang-{number - 1}", pod, REQUESTED, nodeSelector={"pool": "requests"})
            self._pods += EACH
            self.pair.wait_for_running(self._pods)

    def _held(self) -> int:
        path = f"/apis/cagrpc.io/v1alpha1/namespaces/{self._cluster.namespace}/slacks"
        found = self._cluster.admin.items(path)
        return int(found[0].get("status", {}).get("held", -1)) if found else -1

    def _violations(self, names: Sequence[str]) -> Iterator[str]:
        increments = self._cluster.admin.items(INCREMENTS)
        for each in increments:
            if each["status"]["phase"] != "done":
                yield f"{each['spec']['summary']}: {each['status']}"
        ordered, nodes = self.pair.ordered(), {each["metadata"]["name"] for each in self.pair.nodes()}
        if (ordered, len(nodes)) != (self._nodes, self._nodes - self._removed):
            yield (
                f"{ordered} instances were ordered, {self._removed} were removed and {len(nodes)} Nodes are there;"
                f" {self._nodes} were needed"
            )
        places = [pod["spec"]["nodeName"] for pod in self._cluster.pods()]
        if len(set(places)) != len(places):
            yield f"pods share nodes: {places}"
        for name, server in zip(names, self.pair.servers, strict=True):
            for line in server.log().splitlines():
                if any(
                    mark in line for mark in ("Traceback", "failed unexpectedly", '"level": "error"', "cannot be read")
                ):
                    yield f"{name}: {line}"


def _started_in(checkout: Path) -> Start:
    """Return how a module of this checkout is started, in the environment that is its own."""

    def start(command: Sequence[str], output: Path, errors: Path) -> subprocess.Popen[bytes]:
        with output.open("ab") as out, errors.open("ab") as err:
            program = [str(checkout / ".venv" / "bin" / "python"), "-m", *command]
            return subprocess.Popen(program, cwd=checkout, stdout=out, stderr=err)

    return start


if __name__ == "__main__":
    sys.exit(main())
