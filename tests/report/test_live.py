from __future__ import annotations

import json
from pathlib import Path

import pytest

from cagrpc.api.core.movability import MovingRules
from cagrpc.cluster.documents import DocumentReader, followed_kinds
from cagrpc.errors import Unavailable
from cagrpc.offline.inputs import Inputs
from cagrpc.offline.live import OF_WAITING_PODS, read_resources
from cagrpc.report.make import make_report
from solver import Budget
from tests.report.clusters import Document, half_empty, pod
from tests.support.scripted_api import ScriptedAnswer, fake_api
from tests.support.serving import kubeconfig_of

NOT_SERVED = ScriptedAnswer(json.dumps({"kind": "Status", "code": 404, "message": "none"}).encode(), 404)
FORBIDDEN = ScriptedAnswer(json.dumps({"kind": "Status", "code": 403, "message": "no"}).encode(), 403)
EXPIRED = ScriptedAnswer(json.dumps({"kind": "Status", "code": 410, "message": "old"}).encode(), 410)


def page(items: list[Document], token: str = "") -> ScriptedAnswer:
    bare = [{key: value for key, value in each.items() if key not in ("kind", "apiVersion")} for each in items]
    return ScriptedAnswer(json.dumps({"items": bare, "metadata": {"continue": token}}).encode())


def of_kind(kind: str) -> list[Document]:
    return [each for each in half_empty() if each["kind"] == kind]


def test_a_cluster_is_only_listed_and_page_by_page() -> None:
    pods = of_kind("Pod")
    refused = {"PersistentVolume", "PodDisruptionBudget"}
    with fake_api() as api:
        api.answers.extend([page(of_kind("Node")), page(pods[:5], "more"), EXPIRED, page(pods[:5], "more")])
        api.answers.append(page(pods[5:]))
        others = [kind for _, kind in followed_kinds() if kind not in OF_WAITING_PODS][2:]
        api.answers.extend([FORBIDDEN if kind in refused else NOT_SERVED for kind in others])
        found = DocumentReader(moving=MovingRules())
        unread = read_resources(api.client(), found)
        asked = [(each.method, each.path) for each in api.requests]
        limits = {each.query.get("limit") for each in api.requests}
    assert {method for method, _ in asked} == {"GET"}
    assert limits == {"500"}
    assert [each.kind for each in found.documents] == ["Node"] * 7
    names = [pod.name for each in found.bound.alike for pod in each.pods]
    assert sorted(names) == sorted(each["metadata"]["name"] for each in pods)
    assert [each.resource for each in unread] == [
        "poddisruptionbudgets (not allowed)",
        "persistentvolumes (not allowed)",
    ]


def test_what_cannot_be_read_stops_no_report(tmp_path: Path) -> None:
    with fake_api() as api:
        api.answers.extend([page(of_kind("Node")), page([*of_kind("Pod"), pod("bad", "n1", "lots")])])
        api.answers.extend([NOT_SERVED for _, kind in followed_kinds() if kind not in OF_WAITING_PODS][2:])
        inputs = Inputs(kubeconfig=kubeconfig_of(tmp_path, api.client().server))
        report = make_report(inputs, Budget(60, deterministic_seconds=0.1))
    assert report.pods == 7
    (warning,) = report.warnings
    assert warning.startswith("left out: /api/v1/pods (shop/bad): spec.containers[0].resources.requests.cpu")


def test_without_nodes_there_is_no_report() -> None:
    with fake_api() as api:
        api.answers.append(FORBIDDEN)
        with pytest.raises(Unavailable, match="nodes of all namespaces need to be listed"):
            read_resources(api.client(), DocumentReader(moving=MovingRules()))
