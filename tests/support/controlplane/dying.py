"""`cagrpc` that dies by SIGKILL at a step: `python -m tests.support.controlplane.dying STEP ARGUMENT...`.

Steps are reported on standard error, one a line, after `step: `: just before and just after each commit of the journal,
each order and deletion of the backend, and each write of a NodeClaim, a pod's nomination, its eviction, a Node (its
release, its cordon and its booking labels by name) or the status of a ProvisioningRequest. `STEP#3` is the third one
of its name.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

from cagrpc.cli.main import main
from cagrpc.cluster.markers import BOOKING_LABELS
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.records import Changes
from cagrpc.fleet.serial_backend import SerialBackend
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.journal import ClusterJournal

_CREATED = {
    "nodeclaims": "claim",
    "testmachines": "clone of infrastructure",
    "testconfigs": "clone of bootstrap",
    "machines": "machine",
}
"""Names of the creation of objects that stand for instances, by their collection."""


class NamedSteps:
    def __init__(self, fatal: str) -> None:
        name, _, number = fatal.partition("#")
        self._fatal = (name, int(number or 1))
        self._seen: Counter[str] = Counter()
        self._lock = Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self._seen[name] += 1
            print(f"step: {name}", file=sys.stderr, flush=True)
            fatal = (name, self._seen[name]) == self._fatal
        if fatal:
            self.end()

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: type, method: str, describe: Callable[..., str]) -> None:
        """Every call of it is two steps, unless `describe` has no name for it."""
        original = getattr(owner, method)

        @wraps(original)
        def watched(each: Any, *arguments: Any, **more: Any) -> Any:
            name = describe(*arguments, **more)
            if not name:
                return original(each, *arguments, **more)
            self(f"before {name}")
            result = original(each, *arguments, **more)
            self(f"after {name}")
            return result

        setattr(owner, method, watched)


def commit(changes: Changes) -> str:
    if changes.disruptions:
        return f"commit disruption {','.join(sorted(each.phase.value for each in changes.disruptions))}"
    phases = sorted({record.phase.value for record in changes.increments})
    return f"commit {','.join(phases)}" if phases else ""


def write(path: str, body: Any = None, *_: Any, **__: Any) -> str:
    """Of the cluster, for `create` and `patch`."""
    if path.endswith("/eviction"):
        return "evict"
    if isinstance(body, list):
        return "nominate" if "/pods/" in path else "release"
    if "/provisioningrequests/" in path and path.endswith("/status"):
        return "tell"
    created = _CREATED.get(path.rpartition("/")[2])
    if created:
        return created
    if path == "/api/v1/nodes":
        return "register"
    return _write_of_node(body or {}) if path.startswith("/api/v1/nodes/") and not path.endswith("/status") else ""


def _write_of_node(body: Any) -> str:
    cordon = (body.get("spec") or {}).get("unschedulable")
    if cordon is not None:
        return "cordon" if cordon else "uncordon"
    labels = (body.get("metadata") or {}).get("labels") or {}
    booked = {bool(value) for label, value in labels.items() if label.startswith(BOOKING_LABELS)}
    if booked:
        return "book" if True in booked else "unbook"
    return "change node"


def run(arguments: list[str], steps: Callable[[str], NamedSteps] = NamedSteps) -> int:
    step = steps(arguments[0])
    for journal in (SqliteJournal, ClusterJournal):
        step.watch(journal, "commit", commit)
    step.watch(SerialBackend, "order", lambda order: "order")
    step.watch(SerialBackend, "delete", lambda instances: "delete")
    step.watch(Client, "create", write)
    step.watch(Client, "patch", write)
    return main(arguments[1:])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
