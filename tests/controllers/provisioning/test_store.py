"""The PodTemplates that the view of the cluster is told to expect pods of, from a store that is fed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cagrpc.api.provisioning.objects import POD_TEMPLATES, REQUESTS
from cagrpc.controllers.provisioning.store import RequestStore
from tests.support.api_server import ApiServer

_CREATED = "2026-01-02T03:04:05Z"
_CONTAINERS = [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]


class _Fed(RequestStore):
    """A store whose informers are a test."""

    def __init__(self) -> None:
        super().__init__(ApiServer().client())

    def put(self, path: str, *objects: Any) -> None:
        for each in objects:
            self._followed(path).applied(self._followed(path).resource.decode(each))

    def _followed(self, path: str) -> Any:
        (found,) = (each for each in self.followed if each.resource.path == path)
        return found


def _request(name: str = "train", *, status: Any = None, created: str = _CREATED, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": created}
    pod_sets = [{"podTemplateRef": {"name": "worker"}, "count": 3}]
    return {
        "metadata": {**metadata, "resourceVersion": "17", "generation": 2},
        "spec": {"provisioningClassName": "c", "podSets": pod_sets, **spec},
        **({"status": status} if status is not None else {}),
    }


def _template(name: str = "worker", *, labels: Any = None, **spec: Any) -> dict[str, Any]:
    body = {"metadata": {"labels": labels or {}}, "spec": {"containers": _CONTAINERS, **spec}}
    return {"metadata": {"name": name, "namespace": "ns"}, "template": body}


def test_templates_of_requests_that_have_not_failed_are_expected() -> None:
    fed = _Fed()
    assert fed.expected() == frozenset()
    fed.put(REQUESTS, _request("a"), _request("b", podSets=[{"podTemplateRef": {"name": "head"}, "count": 1}]))
    fed.put(POD_TEMPLATES, _template(labels={"app": "a"}), _template("head"), _template("of-nobody", labels={"x": "y"}))
    assert {(each.name, each.labels) for each in fed.expected()} == {("worker", (("app", "a"),)), ("head", ())}
    assert fed.expected() is fed.expected()
    failed = {"type": "Failed", "status": "True", "reason": "Expired", "message": "", "lastTransitionTime": _CREATED}
    fed.put(REQUESTS, _request("a", status={"conditions": [failed]}))
    (head,) = fed.expected()
    assert head.name == "head"
    fed.put(POD_TEMPLATES, _template("head", tolerations=[{"operator": "In"}]))
    assert fed.expected() == frozenset()
    fed.keep(frozenset({head}))
    assert fed.expected() == {head}, "capacity is reserved for its pods"


def test_a_write_of_ours_counts_until_the_watch_shows_what_came_after_it() -> None:
    fed = _Fed()

    def shown(version: str) -> str:
        document = _request()
        fed.put(REQUESTS, {**document, "metadata": {**document["metadata"], "resourceVersion": version}})
        return fed.requests()[0].resource_version

    assert shown("17") == "17"
    (seen,) = fed.requests()
    fed.wrote("17", replace(seen, resource_version="18"))
    fed.wrote("18", replace(seen, resource_version="19"))
    assert [shown(version) for version in ("17", "18", "19", "21")] == ["19", "19", "19", "21"]
    fed.wrote("19", replace(seen, resource_version="20"))
    assert fed.requests()[0].resource_version == "21"
