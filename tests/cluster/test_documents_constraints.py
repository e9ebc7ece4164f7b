"""Constraints between pods over whole files: workloads, running pods, daemons, namespaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cagrpc.errors import InvalidInput
from solver.model import HOSTNAME, HostPort, Operator, PodSelector, PodSpec, Requirement, RunningPods
from tests.support.described import FromFiles, read

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CPU = (("cpu", 1000),)


def _spec(port: int = 0, **more: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}, "ports": [{"hostPort": port}]}
    return {"containers": [container], **more}


def _apart(app: str, **more: Any) -> Any:
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": app}}, **more}
    return {"affinity": {"podAntiAffinity": {_REQUIRED: [term]}}}


def _named(kind: str, name: str, namespace: str = "shop", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, **more.pop("metadata", {})}, **more}


def _pod(name: str, spec: dict[str, Any], namespace: str = "shop", **labels: str) -> dict[str, Any]:
    return _named("Pod", name, namespace, metadata={"labels": labels}, spec=spec)


def _workload(kind: str, name: str, spec: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    count = {"DaemonSet": {}, "Job": {"parallelism": 3}}.get(kind, {"replicas": 3})
    return _named(kind, name, spec={**count, "template": {"metadata": {"labels": labels}, "spec": spec}})


def _node(name: str) -> dict[str, Any]:
    return _named("Node", name, status={"allocatable": {"cpu": "8", "pods": "20"}})


def _read(folder: Path, *objects: Any) -> FromFiles:
    path = folder / "all.json"
    path.write_text(json.dumps({"kind": "List", "items": objects}))
    return read([path])


def _is_in(key: str, value: str) -> Requirement:
    return Requirement(key, Operator.IN, (value,))


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "Job"])
def test_pods_of_a_workload_have_the_labels_of_its_template(tmp_path: Path, kind: str) -> None:
    found = _read(tmp_path, _workload(kind, "web", _spec(**_apart("web")), {"app": "web", "other": "x"}))
    (pods,) = found.pod_sets
    assert (pods.spec.namespace, pods.spec.labels) == ("shop", (("app", "web"),))
    assert [term.selector for term in pods.spec.pod_anti_affinity] == [PodSelector((_is_in("app", "web"),), ("shop",))]
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("Deployment", "pod-template-hash"),
        ("StatefulSet", "controller-revision-hash"),
        ("Job", "batch.kubernetes.io/job-name"),
        ("Job", "job-name"),
    ],
)
def test_labels_that_controllers_add_tell_revisions_apart(tmp_path: Path, kind: str, key: str) -> None:
    new = _workload(kind, "web", _spec(**_apart("web", matchLabelKeys=[key])), {"app": "web"})
    old = _pod("old", _spec(nodeName="n"), app="web", **{key: "before"})
    same = _pod("same", _spec(nodeName="n"), app="web", **{key: "web"})
    found = _read(tmp_path, new, old, same, _node("n"))
    (pods,), (node,) = found.pod_sets, found.nodes
    assert pods.spec.labels == (("app", "web"), (key, "web"))
    assert pods.spec.pod_anti_affinity[0].selector == PodSelector((_is_in("app", "web"), _is_in(key, "web")), ("shop",))
    assert [running.spec.labels for running in node.running] == [(("app", "web"), (key, "web"))]


def test_running_pods_are_what_planned_ones_see_of_them(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _pod("new", _spec(80, **_apart("web")), app="web", tier="front"),
        _node("n1"),
        _node("n2"),
        _pod("a", _spec(nodeName="n1", nodeSelector={"x": "y"}), app="web", index="1"),
        _pod("b", _spec(nodeName="n1"), app="web", index="2"),
        _pod("c", _spec(nodeName="n1"), app="db"),
        _pod("d", _spec(80, nodeName="n2"), namespace="other", app="web"),
        _pod("e", _spec(81, nodeName="n2", **_apart("nothing planned"))),
        _pod("f", _spec(nodeName="n2", **_apart("front"))),
        _pod("g", _spec(nodeName="n2", **_apart("web")), app="web"),
    )
    seen = PodSpec(namespace="shop", labels=(("app", "web"),))
    first, second = found.nodes
    of_new = found.pod_sets[0].spec
    assert of_new.labels == seen.labels
    assert first.running == (RunningPods(seen, 2),)
    assert second.running == (
        RunningPods(PodSpec(host_ports=(HostPort(80),))),
        RunningPods(
            PodSpec(namespace="shop", labels=seen.labels, pod_anti_affinity=of_new.pod_anti_affinity),
        ),
    )
    assert [node.free["cpu"] for node in found.nodes] == [5000, 4000]


def test_where_nobody_looks_nodes_have_no_running_pods(tmp_path: Path) -> None:
    running = [_pod(name, _spec(80, nodeName="n", **_apart("web")), app="web") for name in "ab"]
    found = _read(tmp_path, _pod("new", _spec(), app="db"), _node("n"), *running)
    assert found.nodes[0].running == ()
    assert found.pod_sets[0].spec == PodSpec(_CPU)
    everybody = _apart("any", labelSelector={}, namespaceSelector={})
    found = _read(tmp_path, _pod("new", _spec(**everybody)), _node("n"), *running)
    assert found.nodes[0].running == (RunningPods(PodSpec(), 2),)


def test_running_pods_keep_planned_ones_away_by_labels_that_only_they_look_at(tmp_path: Path) -> None:
    running = _pod("r", _spec(nodeName="n", **_apart("web")))
    found = _read(tmp_path, _pod("new", _spec(), app="web", tier="x"), _node("n"), running)
    assert found.pod_sets[0].spec == PodSpec(_CPU, namespace="shop", labels=(("app", "web"),))
    (seen,) = found.nodes[0].running
    assert (seen.spec.namespace, seen.spec.labels, len(seen.spec.pod_anti_affinity)) == ("", (), 1)


def test_daemons_take_their_ports_and_keep_nobody_out_by_terms(tmp_path: Path) -> None:
    daemon = _workload("DaemonSet", "d", _spec(9100, **_apart("web")), {"app": "d"})
    found = _read(tmp_path, daemon, _pod("new", _spec(**_apart("d")), app="web"))
    assert [(each.requests, each.host_ports) for each in found.daemon_sets] == [(_CPU, (HostPort(9100),))]
    (seen,) = found.daemon_sets
    assert (seen.pod_anti_affinity, seen.labels, seen.namespace) == ((), (("app", "d"),), "shop")


def _of_teams(spec: dict[str, Any]) -> list[Any]:
    return [
        _pod("new", spec, app="web"),
        _pod("a", _spec(nodeName="n"), namespace="a", app="db"),
        _pod("b", _spec(nodeName="n"), namespace="b", app="db"),
        _node("n"),
    ]


def test_namespaces_are_selected_by_the_labels_of_namespace_objects(tmp_path: Path) -> None:
    spec = _spec(**_apart("db", namespaceSelector={"matchLabels": {"team": "x"}}))
    namespaces = [
        _named("Namespace", "a", metadata={"labels": {"team": "x"}}), _named("Namespace", "b"),
        _named("Namespace", "shop"),
    ]  # fmt: skip
    known = _read(tmp_path, *_of_teams(spec), *namespaces)  # nodes, as other objects without pods, are in none
    assert known.warnings == ()
    (term,) = known.pod_sets[0].spec.pod_anti_affinity
    assert term.selector.namespaces == ("a",)
    (running,) = known.nodes[0].running
    assert (running.spec.namespace, running.spec.labels, running.count) == ("a", (("app", "db"),), 1)

    unknown = _read(tmp_path, *_of_teams(spec), _pod("second", spec))
    assert unknown.pod_sets[0].spec.pod_anti_affinity[0].selector.namespaces is None
    (warning,) = unknown.warnings
    assert warning == (
        f"{tmp_path}/all.json[0].items[0] (Pod shop/new): spec.affinity.podAntiAffinity.{_REQUIRED}[0]"
        ".namespaceSelector: the labels of namespaces are not known; all namespaces are searched (and 1 more such);"
        " pass the Namespace objects as well"
    )


def test_namespaces_may_stand_in_a_file_of_nodes(tmp_path: Path) -> None:
    pods, nodes = tmp_path / "pods.json", tmp_path / "nodes.json"
    spec = _spec(**_apart("db", namespaceSelector={"matchLabels": {"team": "x"}}))
    new, *standing = _of_teams(spec)
    pods.write_text(json.dumps(new))
    labelled = [_named("Namespace", name, metadata={"labels": {"team": "x"}}) for name in ("a", "b", "shop", "default")]
    nodes.write_text(json.dumps({"kind": "List", "items": [*standing, *labelled]}))
    found = read([pods], [nodes])
    assert found.warnings == ()
    assert found.pod_sets[0].spec.pod_anti_affinity[0].selector.namespaces == ("a", "b", "default", "shop")


def test_labels_that_are_no_text_are_told_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as raised:
        _read(
            tmp_path,
            _named("Pod", "p", metadata={"labels": {"v": 1}}, spec=_spec()),
            _workload("Deployment", "w", _spec(), {"v": 2}),  # type: ignore[dict-item]
            _named("Namespace", "n", metadata={"labels": []}),
        )
    at = f"{tmp_path}/all.json[0].items"
    starts = {
        f"{at}[0] (Pod shop/p): metadata.labels.v: expected text, found 1; quote it",
        f"{at}[1] (Deployment shop/w): spec.template.metadata.labels.v: expected text, found 2; quote it",
        f"{at}[2] (Namespace shop/n): metadata.labels: expected a mapping, found a list",
    }
    assert set(str(raised.value).splitlines()) == starts
