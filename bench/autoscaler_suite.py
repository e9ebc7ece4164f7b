"""The cluster-autoscaler's own e2e suite ("Cluster size autoscaling") beside `cagrpc serve` and an unmodified
cluster-autoscaler, on a real control plane with simulated machines.

    python -m bench.autoscaler_suite --suite PROGRAM --autoscaler PROGRAM [--drive assist] [--drive plan] [--focus TEXT]

The suite is what `go test -c` makes of `cluster-autoscaler/e2e` of kubernetes/autoscaler, the autoscaler has the
provider externalgrpc (`go build -tags externalgrpc`). One node group with a minimum of three nodes, each with four
devices that a played DRA driver publishes. Prints a Markdown row for each case with its seconds in each drive, and
what failed; the exit code is 1 where one did.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.real_cluster import control_plane, external_provider, real_autoscaler, served
from bench.table import machine, machine_line
from solver.planning.warm_up import warm_up
from tests.support.controlplane.dra_driver import dra_driver
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.plane import ControlPlane
from tests.support.devices import DRIVER, device_class

_LEAST_NODES, _MOST_NODES, _DEVICES = 3, 12, 4
_PATIENCE_SECONDS = 240.0
_BYPASSED_SCHEDULER = "non-existing-bypassed-scheduler"
_FLAGS = (
    "--expander=grpc",
    "--write-status-configmap=true",
    "--scan-interval=5s",
    "--scale-down-unneeded-time=20s",
    "--scale-down-delay-after-add=10s",
    "--unremovable-node-recheck-timeout=10s",
    "--enable-dynamic-resource-allocation=true",
    f"--bypassed-scheduler-names={_BYPASSED_SCHEDULER}",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True, help="the suite's program")
    parser.add_argument("--autoscaler", type=Path, required=True, help="the cluster-autoscaler's program")
    parser.add_argument("--drive", choices=("assist", "plan"), action="append", help="both by default")
    parser.add_argument("--focus", default="", help="only cases whose name has this text (a regular expression)")
    parser.add_argument("--logs", type=Path, help="a directory for the logs of all programs")
    options = parser.parse_args()
    warm_up()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    drives = options.drive or ["assist", "plan"]
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for drive in drives:
        with control_plane() as (plane, directory):
            for name, outcome in cases(plane, directory, drive, options):
                found[name][drive] = outcome
    print(f"| case | {' | '.join(drives)} |\n| --- |{' --- |' * len(drives)}")
    for name, outcomes in found.items():
        print(f"| {name} | {' | '.join(outcomes.get(drive, 'not run') for drive in drives)} |")
    return 1 if any("failed" in each for outcomes in found.values() for each in outcomes.values()) else 0


def cases(plane: ControlPlane, directory: Path, drive: str, options: argparse.Namespace) -> list[tuple[str, str]]:
    """Run the suite in one drive; return the cases with what came of them."""
    plane.stop_controller_manager()
    plane.start_controller_manager("--controllers=replicationcontroller-controller")
    devices = [{"name": f"gpu-{number}"} for number in range(_DEVICES)]
    with served(plane, directory, f"suite-{drive}") as live, dra_driver(plane, lambda _: devices, [device_class()]):
        nodes = group("suite", "4", "8Gi", 0.2, min_size=_LEAST_NODES, max_size=_MOST_NODES)
        live.configure(
            [{"name": "suite", "node_groups": [nodes]}],
            {"*": {"boot": "2s", "delete": "1s"}},
            devices=[{"driver": DRIVER, "count": _DEVICES}],
            drive=drive,
            schedulers=("default-scheduler", _BYPASSED_SCHEDULER),
        )
        live.start()
        with real_autoscaler(live, options.autoscaler, (*external_provider(live), *_FLAGS)) as log:
            live.wait_for(lambda: len(live.nodes()) == _LEAST_NODES, "the minimum is there", _PATIENCE_SECONDS)
            try:
                return suite(live, options)
            finally:
                if options.logs:
                    options.logs.mkdir(parents=True, exist_ok=True)
                    (options.logs / f"{drive}-cagrpc.log").write_text(live.serving.log())
                    (options.logs / f"{drive}-autoscaler.log").write_text(log.read_text())


def suite(live: Live, options: argparse.Namespace) -> list[tuple[str, str]]:
    report = live.directory / "suite.json"
    command = [
        str(options.suite.resolve()),
        "--provider=skeleton",
        f"--kubeconfig={live.cluster.plane.kubeconfig()}",
        f"--ginkgo.focus=Cluster size autoscaling.*{options.focus}",
        f"--ginkgo.json-report={report}",
        "--ginkgo.no-color",
        "--ginkgo.timeout=3h",
        "--ginkgo.v",
    ]
    output = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=live.directory, env=os.environ, check=False
    ).stdout
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
        (options.logs / f"{live.directory.name}.log").write_bytes(output)
    if not report.exists():
        raise SystemExit(f"the suite wrote no report:\n{output.decode(errors='replace')[-4000:]}")
    (found,) = json.loads(report.read_text())
    asked = (each for each in found["SpecReports"] if each["LeafNodeType"] == "It")
    # What is out of focus is skipped without a word, what skips itself says why.
    return [outcome(each) for each in asked if each["State"] != "skipped" or each.get("Failure", {}).get("Message")]


def outcome(of: dict[str, Any]) -> tuple[str, str]:
    """Return a case's name, and what came of it."""
    name = of["LeafNodeText"].split(" [")[0]
    message = " ".join(of.get("Failure", {}).get("Message", "").split())[:200]
    if of["State"] == "passed":
        return name, f"{of['RunTime'] / 1e9:.0f} s"
    return name, f"{of['State']}: {message}"


if __name__ == "__main__":
    sys.exit(main())
