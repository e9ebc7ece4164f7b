"""A world with ProvisioningRequests: what users ask for, and what they are told.

with RequestWorld(group("a")) as world:
    world.template("web", cpu=1000)
    world.request("r", ("web", 3))
    world.run(60)
    assert world.is_true("r", "Provisioned")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.provisioning.objects import POD_TEMPLATES, request_path
from cagrpc.cluster.markers import BOOKING_LABELS, SCALE_DOWN_DISABLED_BY_US, booking_label
from cagrpc.controllers.settings import Drive, RequestSettings
from tests.support.api_server import Document, Refusal
from tests.support.cluster import NAMESPACE, OTHER_NAMESPACE, path_of
from tests.support.world import World

ATOMIC, CHECK = "atomic-scale-up.kubernetes.io", "check-capacity.kubernetes.io"
UPSTREAM_CHECK = "check-capacity.autoscaling.x-k8s.io"
UPSTREAM_ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
REVOKED_AFTER_SECONDS = 30.0
"""How long nodes may be away before capacity is revoked."""
FIRST_PAUSE_SECONDS = 60.0
"""After the first attempt that failed."""


def path(name: str) -> str:
    """Return the path of a request; `other/name` is one of another namespace."""
    return request_path(_namespace(name), name.rpartition("/")[2])


def _namespace(name: str) -> str:
    return name.rpartition("/")[0] or NAMESPACE


class RequestWorld(World):
    """The cluster-autoscaler drives, unless `drive` says otherwise."""

    def __init__(self, *groups: Any, requests: RequestSettings | None = None, **more: Any) -> None:
        more.setdefault("drive", Drive.ASSIST)
        super().__init__(*groups, requests=requests or RequestSettings(), **more)
        self.cluster.replaces = False
        self.namespaces = [NAMESPACE, OTHER_NAMESPACE]
        """Where templates are created."""

    # ---- what users do

    def template(
        self,
        name: str,
        *,
        cpu: int = 1000,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Create a PodTemplate in each namespace."""
        requests = {"requests": {"cpu": f"{cpu}m"}}
        pod = {"containers": [{"name": "main", "resources": requests}], **spec}
        template = {"metadata": {"labels": dict(labels or {}), "annotations": dict(annotations or {})}, "spec": pod}
        for namespace in self.namespaces:
            document = {"metadata": {"namespace": namespace}, "template": template}
            self.api.put(path_of(POD_TEMPLATES, name, namespace), document)

    def remove_template(self, name: str) -> None:
        for namespace in self.namespaces:
            self.api.remove(path_of(POD_TEMPLATES, name, namespace))

    def priority_class(self, name: str, value: int, *, default: bool = False) -> None:
        document = {"metadata": {}, "value": value, "globalDefault": default}
        self.api.put(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}", document)

    def request(self, name: str, *pod_sets: tuple[str, int], of: str = ATOMIC, **parameters: str) -> str:
        """Create a ProvisioningRequest and return its UID."""
        sets = [{"podTemplateRef": {"name": template}, "count": count} for template, count in pod_sets]
        created = timestamp(self.clock())
        metadata = {"namespace": _namespace(name), "generation": 1, "creationTimestamp": created}
        spec = {"provisioningClassName": of, "podSets": sets, "parameters": parameters}
        return str(self.api.put(path(name), {"metadata": metadata, "spec": spec})["metadata"]["uid"])

    def delete(self, name: str) -> None:
        self.api.remove(path(name))

    def consume(self, name: str, count: int, *, of: str = ATOMIC, **pod: Any) -> list[str]:
        """Create pods that consume a request and return their UIDs; `pod` is as for `Cluster.add`."""
        return self.cluster.add(count, annotations={CONSUME_KEYS[0]: name, CLASS_KEYS[0]: of}, **pod)

    def refuse(self, **codes: int) -> None:
        """From now on writes to paths that have one of these in them are refused with a code; without any, none is."""

        def refuse(request: str) -> None:
            code = next((code for part, code in codes.items() if part in request and not request.startswith("GET")), 0)
            if code:
                raise Refusal(code)

        self.api.before = refuse

    # ---- what they are told

    def document(self, name: str) -> Document:
        return self.api.objects[path(name)]

    def condition(self, name: str, kind: str) -> Any:
        """Return a condition; None where there is none."""
        conditions = self.document(name).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), None)

    def is_true(self, name: str, kind: str) -> bool:
        found = self.condition(name, kind)
        return found is not None and found["status"] == "True"

    def message(self, name: str, kind: str) -> str:
        return str(self.condition(name, kind)["message"])

    def details(self, name: str) -> dict[str, str]:
        return dict(self.document(name).get("status", {}).get("provisioningClassDetails", {}))

    @property
    def shown(self) -> Any:
        """What `/status` says of requests."""
        return self.status()["provisioning_requests"]

    @property
    def bookings(self) -> int:
        """The requests with reserved capacity."""
        return int(self.shown["bookings"])

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Return how often something became of requests, by class and outcome."""
        counted = self.metrics()["cagrpc_provisioning_requests_total"].items()
        return {(labels[0], labels[1]): int(each.value) for labels, each in counted}

    def labelled(self, uid: str) -> set[str]:
        """Return the nodes with the label of a booking."""
        return {name for name, each in self.cluster.nodes().items() if booking_label(uid) in each["metadata"]["labels"]}

    def any_labels(self) -> set[str]:
        labels = {label for each in self.cluster.nodes().values() for label in each["metadata"]["labels"]}
        return {label for label in labels if label.startswith(BOOKING_LABELS)}

    def kept_for(self) -> set[str]:
        """Return the requests, `namespace/name`, for which the cluster-autoscaler is to keep nodes."""
        nodes = self.cluster.nodes().values()
        reasons = (each["metadata"].get("annotations", {}).get(SCALE_DOWN_DISABLED_BY_US, "") for each in nodes)
        return {each.rpartition(" ")[2] for each in reasons if "ProvisioningRequest" in each}

    def writes(self, name: str = "") -> list[str]:
        """Return the writes to requests so far, or to one of them."""
        found = [each.removesuffix("/status") for each in self.api.requests if "provisioningrequests" in each]
        return [each for each in found if not each.startswith("GET") and (not name or each.endswith(f"/{name}"))]
