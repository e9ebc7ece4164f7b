"""Builders for the objects of Kueue and cagrpc in JSON, and a harness that reconciles one Workload step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cagrpc.api import kueue as wire
from cagrpc.api.encoding.times import timestamp
from cagrpc.controllers.admission_checks.bodies import owned_by
from cagrpc.controllers.admission_checks.model import CheckWrites, own_request, own_template
from cagrpc.controllers.admission_checks.reconcile import reconcile
from cagrpc.controllers.settings import KueueSettings

NOW = 1_800_000_000.0
RESERVED = timestamp(NOW - 60)
CHECK = "capacity"
QUEUE = "batch"
CLASS = "atomic-scale-up.kubernetes.io"

Document = dict[str, Any]


def condition(type_: str, status: bool = True, message: str = "", since: float = NOW, reason: str = "Test") -> Document:
    return {
        "type": type_,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(since),
    }


def pod_set(name: str, count: int, requests: Mapping[str, str] | None = None, **spec: Any) -> Document:
    container = {"name": "main", "image": "example.com/none", "resources": {"requests": dict(requests or {"cpu": "1"})}}
    return {"name": name, "count": count, "template": {"spec": {"containers": [container], **spec}}}


def check_state(name: str = CHECK, state: str = wire.PENDING, **more: Any) -> Document:
    return {"name": name, "state": state, "message": "", "lastTransitionTime": RESERVED, **more}


def workload(
    *pod_sets: Document,
    checks: Sequence[Document] | None = None,
    conditions: Sequence[Document] = (),
    name: str = "job",
    annotations: Mapping[str, str] | None = None,
    flavors: Mapping[str, str] | None = None,
    counts: Mapping[str, int] | None = None,
    reserved: str = RESERVED,
    active: bool = True,
    **metadata: Any,
) -> Document:
    """Return a Workload with quota, unless `reserved` is empty."""
    sets = list(pod_sets) or [pod_set("workers", 8), pod_set("head", 1)]
    flavored = dict(flavors or {"cpu": "plain"})
    assigned = [
        {"name": s["name"], "flavors": flavored, "count": (counts or {}).get(s["name"], s["count"])} for s in sets
    ]
    quota = [{**condition("QuotaReserved"), "lastTransitionTime": reserved}] if reserved else []
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": "workload-uid",
            "resourceVersion": "7",
            "annotations": dict(annotations or {}),
            **metadata,
        },
        "spec": {"podSets": sets, "queueName": "queue", "active": active},
        "status": {
            "conditions": [*quota, *conditions],
            **({"admission": {"clusterQueue": QUEUE, "podSetAssignments": assigned}} if reserved else {}),
            "admissionChecks": [check_state()] if checks is None else list(checks),
        },
    }


def config(name: str = "config", **spec: Any) -> Document:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": wire.CONFIG_KIND,
        "metadata": {"name": name},
        "spec": {"provisioningClassName": CLASS, **spec},
    }


def flavor(name: str = "plain", **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": spec}


def retries(limit: int, base: int = 60, longest: int = 1800) -> Document:
    return {
        "retryStrategy": {
            "backoffLimitCount": limit,
            "backoffBaseSeconds": base,
            "backoffMaxSeconds": longest,
        }
    }


@dataclass
class KueueHarness:
    """One Workload, its checks' configurations, and the requests and templates that were created."""

    workload: Document = field(default_factory=workload)
    configs: dict[str, Document | str] = field(default_factory=lambda: {CHECK: config()})
    """By check."""
    flavors: list[Document] = field(default_factory=lambda: [flavor()])
    settings: KueueSettings = field(default_factory=KueueSettings)
    now: float = NOW
    requests: dict[str, Document] = field(default_factory=dict)
    templates: dict[str, Document] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    """Names of all requests that were ever made."""
    _number: int = 0

    def writes(self) -> CheckWrites:
        return reconcile(
            wire.workload(self.workload),
            {
                name: found if isinstance(found, str) else wire.request_config(found)
                for name, found in self.configs.items()
            },
            [own_request(each) for each in self.requests.values()],
            [own_template(each) for each in self.templates.values()],
            {each["metadata"]["name"]: wire.flavor(each) for each in self.flavors},
            self.settings,
            self.now,
        )

    def settle(self, most: int = 10) -> list[CheckWrites]:
        """Reconcile until there is nothing to write."""
        done: list[CheckWrites] = []
        for _ in range(most):
            writes = self.writes()
            if not (writes.in_the_way or writes.creations or writes.updates or writes.removals):
                return done
            self.do(writes)
            done.append(writes)
        raise AssertionError(f"it never ends: {done[-2:]}")

    def do(self, writes: CheckWrites, steps: int = 1_000) -> None:
        """Apply the writes in their order, at most `steps` of them: a process that is killed does no more."""
        for step in self._steps(writes)[:steps]:
            step()

    def _steps(self, writes: CheckWrites) -> list[Any]:
        steps: list[Any] = [lambda r=r: self._remove(r.resource, r.name, r.uid) for r in writes.in_the_way]
        for creation in writes.creations:
            steps += [lambda body=body: self._make(self.templates, body) for body in creation.templates]
            steps.append(lambda creation=creation: self._request(creation))
        if writes.updates:
            steps.append(lambda: self._answer(writes))
        steps += [lambda r=r: self._remove(r.resource, r.name, r.uid) for r in writes.removals]
        return steps

    def _make(self, there: dict[str, Document], body: Mapping[str, Any]) -> bool:
        name = body["metadata"]["name"]
        if name in there:
            assert there[name]["metadata"]["annotations"] == body["metadata"]["annotations"], "another is in the way"
            return False
        self._number += 1
        there[name] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{self._number}"}}
        return True

    def _request(self, creation: Any) -> None:
        body = owned_by(creation.request, self.templates[creation.templates[0]["metadata"]["name"]])
        if self._make(self.requests, body):
            self.made.append(creation.name)

    def _remove(self, resource: str, name: str, uid: str) -> None:
        there = self.templates if resource == "podtemplates" else self.requests
        assert there[name]["metadata"]["uid"] == uid
        del there[name]

    def _answer(self, writes: CheckWrites) -> None:
        patch = wire.checks_patch(wire.workload(self.workload), writes.updates, self.now)
        self.workload["status"]["admissionChecks"] = patch["status"]["admissionChecks"]

    # ---- writes of others

    def says(self, *conditions: Document, name: str = "", **details: str) -> None:
        """Set conditions of a request as the autoscaler does: of the only one, or of the one with this name."""
        chosen = name or self.only()
        self.requests[chosen] = {
            **self.requests[chosen],
            "status": {"conditions": list(conditions), "provisioningClassDetails": details},
        }

    def only(self) -> str:
        (name,) = self.requests
        return name

    def kueue_says(self, *conditions: Document) -> None:
        kept = [c for c in self.workload["status"]["conditions"] if c["type"] not in {x["type"] for x in conditions}]
        self.workload["status"]["conditions"] = [*kept, *conditions]

    def kueue_evicts(self, since: float | None = None) -> None:
        """Evict as Kueue does: checks are reset, and one that was Retry is counted. Its server-side apply leaves fields
        of other managers: the pod sets' updates and the pause."""
        self.kueue_says(condition("Evicted", since=since or self.now), condition("Admitted", False))
        for each in self.workload["status"]["admissionChecks"]:
            if each["state"] == wire.PENDING:
                continue
            count = each.pop("retryCount", 0)
            if each["state"] == wire.RETRY:
                each["retryCount"] = count + 1
            each |= {"state": wire.PENDING, "message": "Reset to Pending after eviction"}

    def kueue_reserves(self) -> None:
        """Reserve quota again."""
        again = {**condition("QuotaReserved"), "lastTransitionTime": timestamp(self.now)}
        self.kueue_says(condition("Evicted", False), again)

    @property
    def state(self) -> Document:
        (found,) = self.workload["status"]["admissionChecks"]
        return dict(found)
