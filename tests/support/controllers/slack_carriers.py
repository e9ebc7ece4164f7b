"""Objects that carry slack, in memory as an API server keeps them, and what `Write`s make of them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from typing import Any

from cagrpc.api import capacity_buffers
from cagrpc.api.capacity_buffers import BufferStatus
from cagrpc.api.core.slack import SHAPE
from cagrpc.controllers.slack.carriers.objects import Object, Place, Verb, Write
from solver.model import PodSpec
from solver.slack.model import Role, SlackShape

OWNER = {"apiVersion": "cagrpc.io/v1alpha1", "kind": "Slack", "name": "cagrpc", "uid": "of-slack"}
PLACE = Place("holders", "example.com/pause", OWNER)
NOW = 1_800_000_000.0


def shape(name: str, cpu: int, number: int = 1, **spec: Any) -> SlackShape:
    return SlackShape(f"t/fixed/{name}", Role.FIXED, PodSpec((("cpu", cpu),), **spec), number, "as the test says")


class CarrierObjects:
    """Objects by collection and name; `controllers` stands in for the ReplicaSet controller."""

    def __init__(self) -> None:
        self._of: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self._uids = count(1)

    def there(self, collection: str) -> dict[str, Object]:
        return {name: copy.deepcopy(found) for name, found in self._of[collection].items()}

    def write(self, writes: Iterable[Write]) -> None:
        for each in writes:
            self._write(each)

    def _write(self, write: Write) -> None:
        if write.verb is Verb.CREATE:
            found = copy.deepcopy(dict(write.body))
            name = found["metadata"]["name"]
            assert name not in self._of[write.path], f"{name} is there already"
            found["metadata"] |= {"uid": f"uid-{next(self._uids)}", "generation": 1, "resourceVersion": "1"}
            found.pop("status", None)
            self._of[write.path][name] = found
            return
        path = write.path.removesuffix("/status")
        collection, _, name = path.rpartition("/")
        found = self._of[collection][name]
        if write.verb is Verb.DELETE:
            assert found["metadata"]["uid"] == write.uid
            del self._of[collection][name]
            return
        part = "status" if path != write.path else "spec"
        wanted_version = write.body.get("metadata", {}).get("resourceVersion", found["metadata"]["resourceVersion"])
        assert wanted_version == found["metadata"]["resourceVersion"]
        found[part] = {**found.get(part, {}), **copy.deepcopy(write.body[part])}
        found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)
        found["metadata"]["generation"] += part == "spec"

    def controllers(self) -> None:
        """Create the pods of ReplicaSets."""
        for found in self._of[PLACE.replica_sets()].values():
            replicas = found["spec"]["replicas"]
            found["status"] = {"replicas": replicas, "observedGeneration": found["metadata"]["generation"]}

    def injected(self) -> dict[str, tuple[int, Any]]:
        """Return what CA injects by its rules: by shape how many pods of which template."""
        found = {}
        for buffer in self._of[PLACE.buffers()].values():
            said = capacity_buffers.status(buffer)
            template = self._of[PLACE.templates()].get(said.template)
            if template is not None and said == BufferStatus(
                said.template, template["metadata"]["generation"], said.replicas
            ):
                found[buffer["metadata"]["annotations"][SHAPE]] = (said.replicas, template["template"]["spec"])
        return found

    def pods(self) -> dict[str, list[tuple[int, Any]]]:
        """Return what ReplicaSets want: by shape how many pods of which template."""
        found: defaultdict[str, list[tuple[int, Any]]] = defaultdict(list)
        for each in self._of[PLACE.replica_sets()].values():
            if each["spec"]["replicas"]:
                wants = (each["spec"]["replicas"], each["spec"]["template"]["spec"])
                found[each["metadata"]["annotations"][SHAPE]].append(wants)
        return dict(found)
