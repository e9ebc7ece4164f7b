"""What one namespace's Workloads, PodTemplates and requests cost: nothing for those of others, and as much each however
many they are."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

from cagrpc.api.provisioning.objects import POD_TEMPLATES
from cagrpc.controllers.admission_checks.model import OWNED, WORKLOAD_UID
from cagrpc.controllers.admission_checks.store import CheckStore
from cagrpc.kube.client.envelopes import identity
from tests.support.api_server import ApiServer
from tests.support.kueue import NAMESPACE, pod_set, workload
from tests.support.steps import steps

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"


class FedChecks:
    """The store without a watch."""

    def __init__(self) -> None:
        client = ApiServer().client()
        self.store = CheckStore(client, "v1beta2", lambda _: None)
        self._by_path = {each.resource.path: each for each in self.store.followed}

    def put(self, *documents: Any, path: str = WORKLOADS) -> None:
        followed = self._by_path[path]
        for each in documents:
            followed.applied(followed.resource.decode(each))

    def drop(self, *documents: Any, path: str) -> None:
        followed = self._by_path[path]
        for each in documents:
            followed.deleted(identity(followed.resource.encoding, each))


def template(number: int, *, namespace: str = NAMESPACE) -> Any:
    """Return a PodTemplate that says it was made for the Workload."""
    metadata = {
        "name": f"t{number}",
        "namespace": namespace,
        "uid": f"uid-{number}",
        "labels": {OWNED: "true"},
        "annotations": {WORKLOAD_UID: "workload-uid"},
    }
    return {"metadata": metadata, "template": {"spec": {"containers": []}}}


def test_whether_kueue_writes_costs_the_same_however_many_workloads_there_are() -> None:
    def ask(count: int) -> int:
        fed = FedChecks()
        fed.put(*(workload(name=f"job-{number}", uid=f"{number}") for number in range(count)))
        return steps(fed.store.kueue_writes)

    assert ask(200) == ask(20)


def test_an_object_that_says_it_was_made_for_a_workload_costs_the_same_however_many_do() -> None:
    def change(count: int) -> int:
        fed = FedChecks()
        fed.put(workload())
        fed.put(*map(template, range(count)), path=POD_TEMPLATES)
        last = template(count - 1)

        def work() -> None:
            fed.put(last, path=POD_TEMPLATES)
            fed.drop(last, path=POD_TEMPLATES)

        return steps(work)

    assert change(200) == change(20)


def test_what_another_namespace_says_it_made_for_a_workload_is_not_looked_at() -> None:
    fed = FedChecks()
    fed.put(workload())
    fed.put(template(1), template(2, namespace="other"), path=POD_TEMPLATES)
    found = fed.store.observe(f"{NAMESPACE}/job")
    assert found is not None
    assert [each.name for each in found.templates] == ["t1"]


def test_workloads_take_little_more_memory_than_what_was_written() -> None:
    variables = [{"name": f"v{number}", "value": ""} for number in range(10_000)]
    containers = [{"name": "main", "image": "example.com/none", "env": variables}]
    written = json.dumps(workload(pod_set("workers", 1, containers=containers)))
    fed = FedChecks()
    tracemalloc.start()
    try:
        fed.put(json.loads(written))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.2 * len(written)
