"""FromFiles and pod tables: what each kind stands for, and every error at once with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.errors import InvalidInput
from solver.model import NodeGroup, PodSpec, Taint, TaintEffect
from solver.model.eligibility import untolerated
from tests.support.described import FromFiles, read
from tests.support.examples import examples

_GIB = 2**30


def _pod_spec(cpu: str = "1", **more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **more}


def _object(kind: str, name: str = "x", spec: Any = None, *, metadata: Any = None, **more: Any) -> dict[str, Any]:
    spec_part = {} if spec is None else {"spec": spec}
    return {"kind": kind, "metadata": {"name": name, **(metadata or {})}, **spec_part, **more}


def _workload(kind: str, name: str = "x", cpu: str = "1", **spec: Any) -> dict[str, Any]:
    return _object(kind, name, {"template": {"spec": _pod_spec(cpu)}, **spec})


def _owned_by(kind: str, name: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name}]}


def _counts(found: FromFiles) -> list[int]:
    return [each.count for each in found.pod_sets]


def _read(folder: Path, *objects: Any, now_seconds: float = 0.0) -> FromFiles:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return read([path], now_seconds=now_seconds)


def _problems(folder: Path, *objects: Any) -> list[str]:
    with pytest.raises(InvalidInput) as raised:
        _read(folder, *objects)
    return [line.removeprefix(str(folder / "all.yaml")) for line in str(raised.value).splitlines()]


_ONE = PodSpec((("cpu", 1000),))


def _job_set(*replicated: tuple[int, dict[str, Any]], **spec: Any) -> dict[str, Any]:
    jobs = [
        {
            "name": f"part-{number}",
            "replicas": replicas,
            "template": {"spec": {"template": {"spec": _pod_spec()}, **of}},
            **({"dependsOn": of.pop("dependsOn")} if "dependsOn" in of else {}),
        }
        for number, (replicas, of) in enumerate(replicated)
    ]
    return _object("JobSet", spec={"replicatedJobs": jobs, **spec}, apiVersion="jobset.x-k8s.io/v1alpha2")


@pytest.mark.parametrize(
    ("document", "count"),
    [
        pytest.param(_object("Pod", spec=_pod_spec()), 1, id="Pod"),
        pytest.param(_workload("Deployment", replicas=3), 3, id="Deployment"),
        pytest.param(_workload("Deployment"), 1, id="replicas default to 1"),
        pytest.param(_workload("ReplicaSet", replicas=2), 2, id="ReplicaSet"),
        pytest.param(_workload("StatefulSet", replicas=2), 2, id="StatefulSet"),
        pytest.param(_workload("ReplicationController", replicas=2), 2, id="ReplicationController"),
        pytest.param(_workload("Job", parallelism=4, completions=9), 4, id="Job"),
        pytest.param(_workload("Job", parallelism=4, completions=3), 3, id="a Job with less to do than it may at once"),
        pytest.param(_workload("Job", parallelism=4), 4, id="a Job without completions"),
        pytest.param(_object("CronJob", spec={"jobTemplate": {"spec": _workload("Job", parallelism=2)["spec"]}}), 2,
                     id="one run of a CronJob"),
        pytest.param(_object("List") | {"items": [_workload("Deployment", replicas=3)]}, 3, id="List"),
        pytest.param({"kind": "PodList", "items": [{"metadata": {"name": "x"}, "spec": _pod_spec()}]}, 1, id="PodList"),
    ],
)  # fmt: skip
def test_what_a_workload_stands_for(tmp_path: Path, document: dict[str, Any], count: int) -> None:
    found = _read(tmp_path, document)
    assert [(p.name, p.spec, p.count) for p in found.pod_sets] == [("default/x", _ONE, count)]
    assert not found.warnings
    as_json = tmp_path / "all.json"
    as_json.write_text(json.dumps(document))
    assert read([as_json]) == found


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(_object("Pod", spec=_pod_spec(), status={"phase": "Succeeded"}), id="a pod that succeeded"),
        pytest.param(_object("Pod", spec=_pod_spec(), status={"phase": "Failed"}), id="a pod that failed"),
        pytest.param(_workload("Deployment", replicas=0), id="scaled to nothing"),
        pytest.param(_workload("Job", suspend=True), id="a suspended Job"),
        pytest.param(_object("Pod", spec=_pod_spec(), metadata=_owned_by("DaemonSet", "d")),
                     id="a daemon's pod, which waits for its own node"),
        pytest.param(None, id="an empty document"),
    ],
)  # fmt: skip
def test_what_asks_for_nothing(tmp_path: Path, document: Any) -> None:
    assert _read(tmp_path, document) == FromFiles()


def test_a_workload_whose_own_pods_are_there_is_not_counted_twice(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _workload("Deployment", "web", replicas=2),
        {
            **_workload("ReplicaSet", "web-1", replicas=2),
            "metadata": {"name": "web-1", **_owned_by("Deployment", "web")},
        },
        _object("Pod", "web-1-a", _pod_spec(), metadata=_owned_by("ReplicaSet", "web-1")),
    )
    assert [(p.name, p.count) for p in found.pod_sets] == [("default/web-1-a", 1)]


def test_a_daemon_set_is_overhead_of_new_nodes(tmp_path: Path) -> None:
    found = _read(tmp_path, _workload("DaemonSet", cpu="100m"))
    (daemon,) = found.daemon_sets
    assert daemon.requests == (("cpu", 100),)
    assert found.pod_sets == ()


def test_daemons_tolerate_what_their_controller_makes_them_tolerate(tmp_path: Path) -> None:
    (daemon,) = _read(tmp_path, _workload("DaemonSet", cpu="100m")).daemon_sets
    taints = [
        Taint("node.kubernetes.io/unschedulable", TaintEffect.NO_SCHEDULE),
        Taint("node.kubernetes.io/not-ready", TaintEffect.NO_EXECUTE),
        Taint("example.org/other", TaintEffect.NO_SCHEDULE),
    ]
    assert untolerated(taints, daemon.tolerations) == taints[2]


_TRAIN = "provisioningrequest.autoscaling.x-k8s.io default/train"


def test_a_provisioning_request_is_one_gang(tmp_path: Path) -> None:
    request = _object("ProvisioningRequest", "train", {"podSets": [
        {"podTemplateRef": {"name": "head"}, "count": 1}, {"podTemplateRef": {"name": "worker"}, "count": 16},
    ]})  # fmt: skip
    head = _object("PodTemplate", "head") | {"template": {"spec": _pod_spec("2")}}
    worker = _object("PodTemplate", "worker") | {"template": {"spec": _pod_spec("8")}}
    consume = {"annotations": {"autoscaling.x-k8s.io/consume-provisioning-request": "train"}}
    pod = _object("Pod", "w-1", _pod_spec("8"), metadata=consume)
    found = _read(tmp_path, request, head, worker, pod)
    assert [(p.name, p.count, p.gang, dict(p.spec.requests)["cpu"]) for p in found.pod_sets] == [
        ("default/head", 1, _TRAIN, 2000), ("default/worker", 16, _TRAIN, 8000),
    ]  # fmt: skip
    assert _read(tmp_path, pod).pod_sets[0].gang == _TRAIN


@pytest.mark.parametrize("on_the_pods", [True, False])
@pytest.mark.parametrize("prefix", ["autoscaling.x-k8s.io", "cluster-autoscaler.kubernetes.io"])
def test_a_workload_that_consumes_a_request_is_not_counted_beside_it(
    tmp_path: Path, prefix: str, on_the_pods: bool
) -> None:
    request = _object("ProvisioningRequest", "pr", {"podSets": [{"podTemplateRef": {"name": "t"}, "count": 4}]})
    template = _object("PodTemplate", "t") | {"template": {"spec": _pod_spec()}}
    consume = {"annotations": {f"{prefix}/consume-provisioning-request": "pr"}}
    pods = {"spec": _pod_spec(), **({"metadata": consume} if on_the_pods else {})}
    job = _object("Job", "j", {"parallelism": 4, "template": pods}, metadata={} if on_the_pods else consume)
    found = _read(tmp_path, request, template, job)
    assert [(p.name, p.count) for p in found.pod_sets] == [("default/t", 4)]
    elsewhere = {**job, "metadata": {**job["metadata"], "namespace": "other"}}
    assert [p.count for p in _read(tmp_path, request, template, elsewhere).pod_sets] == [4, 4]


def _ganged(kind: str, name: str, metadata: Any, *, spec: Any = None, **more: Any) -> dict[str, Any]:
    return _object(kind, name, {"template": {"metadata": metadata, "spec": spec or _pod_spec()}, **more})


_TRAINING = {"labels": {"scheduling.x-k8s.io/pod-group": "t"}}
_GANG = "podgroup.scheduling.x-k8s.io default/t"


def _minimum(count: Any) -> dict[str, Any]:
    return _object("PodGroup", "t", {"minMember": count}, apiVersion="scheduling.x-k8s.io/v1alpha1")


def test_pods_of_several_workloads_are_one_gang_up_to_its_minimum(tmp_path: Path) -> None:
    head = _ganged("Job", "head", _TRAINING)
    workers = _ganged("StatefulSet", "workers", _TRAINING, replicas=5)
    found = _read(tmp_path, head, workers)
    assert [(p.name, p.count, p.gang) for p in found.pod_sets] == [
        ("default/head", 6, _GANG),
    ]  # fmt: skip
    found = _read(tmp_path, head, workers, _minimum(4))
    assert [(p.name, p.count, p.gang) for p in found.pod_sets] == [
        ("default/head", 4, _GANG), ("default/workers", 2, None),
    ]  # fmt: skip
    assert not found.warnings
    running = _object("Pod", "w", _pod_spec(nodeName="n"), metadata=_TRAINING)
    done = _object("Pod", "d", _pod_spec(), metadata=_TRAINING, status={"phase": "Succeeded"})
    failed = _object("Pod", "f", _pod_spec(nodeName="n"), metadata=_TRAINING, status={"phase": "Failed"})
    node = _object("Node", "n", status={"allocatable": {"cpu": "8"}})
    found = _read(tmp_path, head, _minimum(4), running, done, failed, node, workers)
    assert [(p.name, p.count, p.gang) for p in found.pod_sets] == [
        ("default/head", 2, _GANG), ("default/workers", 4, None),
    ]  # fmt: skip


def test_an_incomplete_gang_is_not_planned_and_warned_of(tmp_path: Path) -> None:
    workers = _ganged("Job", "workers", _TRAINING, parallelism=3)
    gated = _ganged("Job", "gated", _TRAINING, spec=_pod_spec(schedulingGates=[{"name": "example.com/quota"}]))
    found = _read(tmp_path, workers, _minimum(4), _object("Pod", "other", _pod_spec()))
    assert [(p.name, p.gang) for p in found.pod_sets] == [("default/other", None)]
    assert found.warnings == (f"gang {_GANG} is not complete: it has 3 of 4 pods; nothing of it is planned",)
    assert not _read(tmp_path, workers, gated).pod_sets
    asked = {**_TRAINING, "annotations": {"cagrpc.io/gang-min-count": "2"}}
    assert [p.count for p in _read(tmp_path, _ganged("Job", "w", asked, parallelism=3), gated).pod_sets] == [2, 1]


def test_the_oldest_pods_of_a_gang_are_its_minimum(tmp_path: Path) -> None:
    def pod(name: str, minute: int) -> dict[str, Any]:
        return _object(
            "Pod", name, _pod_spec(), metadata={**_TRAINING, "creationTimestamp": f"2026-01-01T00:{minute:02}:00Z"}
        )

    pods = [pod("young", 30), pod("old", 10), pod("middle", 20)]
    found = _read(tmp_path, *pods, _minimum(2), now_seconds=1767229200)
    assert [(p.name, p.count, p.gang) for p in found.pod_sets] == [
        ("default/old", 2, _GANG), ("default/young", 1, None),
    ]  # fmt: skip


def test_faults_of_gangs_are_told_with_their_paths(tmp_path: Path) -> None:
    asked = {**_TRAINING, "annotations": {"cagrpc.io/gang-min-count": "all"}}
    path = "spec.template.metadata.annotations[cagrpc.io/gang-min-count]"
    assert _problems(tmp_path, _minimum(0), _ganged("Job", "j", asked)) == [
        "[0] (PodGroup default/t): spec.minMember: 0 is not a whole number from 1 to 2147483647",
        f'[1] (Job default/j): {path}: "all" is not a whole number from 1 to 2147483647',
    ]


def test_a_pod_group_of_a_stranger_is_passed_over(tmp_path: Path) -> None:
    found = _read(tmp_path, _object("PodGroup", "t", {"minMember": "?"}, apiVersion="example.com/v1"))
    assert found.warnings == ("objects that planning does not read were ignored: 1 PodGroup",)


def test_priorities_come_from_classes_in_any_order(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _object("Pod", "a", _pod_spec(priorityClassName="high")),
        _object("Pod", "b", _pod_spec(priority=7, priorityClassName="high")),
        _object("Pod", "c", _pod_spec()),
        _object("Pod", "d", _pod_spec(priorityClassName="system-node-critical")),
        _object("Pod", "e", _pod_spec(priorityClassName="other")),
        _object("PriorityClass", "high") | {"value": 1000},
        _object("PriorityClass", "usual") | {"value": 10, "globalDefault": True},
    )
    assert [p.priority for p in found.pod_sets] == [1000, 7, 10, 2_000_001_000, 0]
    assert found.warnings == (
        "PriorityClass other is not in the files; its pods, for example default/e, were given priority 0",
    )


def test_nodes_have_what_their_pods_leave(tmp_path: Path) -> None:
    node = _object("Node", "n1", {"unschedulable": True}, metadata={"labels": {"zone": "a"}}, status={
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}
    })  # fmt: skip
    running = _object("Pod", "r", _pod_spec("1500m", nodeName="n1"), status={"phase": "Running"})
    ended = _object("Pod", "e", _pod_spec("1", nodeName="n1"), status={"phase": "Failed"})
    elsewhere = _object("Pod", "s", _pod_spec("1", nodeName="n9"))
    found = _read(tmp_path, running, node, ended, elsewhere)
    (got,) = found.nodes
    assert (got.name, got.free, got.labels) == ("n1", {"cpu": 2500, "memory": 8 * _GIB, "pods": 9}, {"zone": "a"})
    assert [t.key for t in got.taints] == ["node.kubernetes.io/unschedulable"]
    assert found.pod_sets == ()
    assert found.warnings == ("ignored 1 running pod, since the files do not have the nodes, for example n9",)


def test_of_a_file_of_nodes_only_nodes_and_their_pods_are_read(tmp_path: Path) -> None:
    node = _object("Node", "n1", status={"allocatable": {"cpu": "4", "pods": "10"}})
    running = _object("Pod", "r", _pod_spec("1", nodeName="n1"))
    waiting = [_object("Pod", "w", _pod_spec()), _workload("Deployment", replicas=3), _workload("DaemonSet")]
    nodes, table, empty = (tmp_path / name for name in ("nodes.yaml", "nodes.csv", "empty.yaml"))
    nodes.write_text(yaml.safe_dump_all([node, running, *waiting]))
    found = read([], [nodes])
    assert (found.pod_sets, found.daemon_sets) == ((), ())
    assert [n.free["cpu"] for n in found.nodes] == [3000]
    (warning,) = found.warnings
    assert warning == (
        "objects other than nodes and pods bound to them in files of --nodes were ignored:"
        " 1 DaemonSet, 1 Deployment, 1 Pod; pass the pods to plan with --pods"
    )
    whole = read([nodes], [nodes])  # of a whole cluster, named by both
    assert ([p.count for p in whole.pod_sets], len(whole.nodes), whole.warnings) == ([4], 1, ())
    table.write_text("name,cpu_milli,memory_mib,num_gpu\na,1,1,0\n")
    empty.write_text("")
    with pytest.raises(InvalidInput) as raised:
        read([], [table, empty])
    first, second = str(raised.value).splitlines()
    assert first.startswith(f"{table}[0]: expected a Kubernetes object")
    with pytest.raises(InvalidInput, match="has no Node"):
        read([table], [table])
    assert second == f"{empty}: has no Node; --nodes takes Kubernetes nodes, and pods bound to them"


def test_kinds_that_planning_does_not_read_are_one_warning(tmp_path: Path) -> None:
    found = _read(tmp_path, _object("Pod", "b", _pod_spec()), _object("Service"), _object("Service"))
    assert found.warnings == ("objects that planning does not read were ignored: 2 Service",)


def test_gated_pods_are_left_out_with_one_warning(tmp_path: Path) -> None:
    gated = _pod_spec(schedulingGates=[{"name": "example.com/quota"}])
    found = _read(
        tmp_path,
        _object("Pod", "a", gated),
        _object("Deployment", "b", {"replicas": 3, "template": {"spec": gated}}),
        _object("Pod", "open", _pod_spec(schedulingGates=[])),
        _object("ProvisioningRequest", "r", {"podSets": [{"podTemplateRef": {"name": "t"}, "count": 2}]}),
        _object("PodTemplate", "t") | {"template": {"spec": gated}},
    )
    assert [(p.name, p.count) for p in found.pod_sets] == [("default/open", 1), ("default/t", 2)]
    assert found.warnings == ("left out 4 pods with schedulingGates, not schedulable yet, for example default/a",)


def test_pods_wait_since_their_creation(tmp_path: Path) -> None:
    made = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    found = _read(tmp_path, _object("Pod", spec=_pod_spec(), metadata=made), now_seconds=1767225600 + 90)
    assert found.pod_sets[0].waiting_seconds == 90
    path = tmp_path / "unquoted.yaml"  # YAML reads such a time by itself
    path.write_text(
        "kind: Pod\nmetadata: {name: x, creationTimestamp: 2026-01-01T00:00:00Z}\nspec: {containers: [{}]}\n"
    )
    assert read([path], now_seconds=1767225600 + 90).pod_sets[0].waiting_seconds == 90


def test_a_table_of_pods_becomes_classes(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(
        "name,qos,cpu_milli,memory_mib,num_gpu,count\na,LS,500,1024,0,2\nb,LS,4000,2048,1,\nc,BE,500,1024,0,3\n"
    )
    found = read([path])
    assert [(p.name, p.count, p.spec.requests) for p in found.pod_sets] == [
        ("default/a", 5, (("cpu", 500), ("memory", _GIB))),
        ("default/b", 1, (("cpu", 4000), ("memory", 2 * _GIB), ("nvidia.com/gpu", 1))),
    ]


def test_a_pod_that_is_there_twice_counts_once_and_is_told(tmp_path: Path) -> None:
    found = _read(tmp_path, *(_object("Pod", "a", _pod_spec()) for _ in range(2)), _object("Pod", "b", _pod_spec()))
    assert sum(each.count for each in found.pod_sets) == 2
    assert found.warnings == ("ignored 1 object of the name of another one of its kind, for example Pod default/a",)


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu\na,500,1024,0\n")
    assert [p.count for p in read([path, path]).pod_sets] == [1]


def test_every_error_of_every_file_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    bad_yaml, bad_json, table, short = (tmp_path / name for name in ("a.yaml", "b.json", "c.csv", "d.csv"))
    bad_yaml.write_text("kind: [")
    bad_json.write_text("{'kind'")
    table.write_text("name,cpu_milli,memory_mib,num_gpu\na,-1,some,0\nb,1\n")
    short.write_text("name,cpu\n")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"\xff")
    missing = tmp_path / "missing.yaml"
    with pytest.raises(InvalidInput) as raised:
        read([bad_yaml, bad_json, table, short, latin, missing])
    lines = str(raised.value).splitlines()
    starts = [
        f"{bad_yaml}: is not YAML",
        f"{bad_json}: is not YAML",
        f'{table}: line 2: cpu_milli: "-1" is not a whole number from 0 to 999999999',
        f'{table}: line 2: memory_mib: "some" is not a whole number',
        f"{table}: line 3: has 2 cells, expected 4, one for each column",
        f"{short}: line 1: no column cpu_milli, memory_mib, num_gpu; expected name,cpu_milli,",
        f"{latin}: is not UTF-8 text",
        f"{missing}: cannot be read: No such file or directory",
    ]
    assert len(lines) == len(starts)
    assert [line for line, start in zip(lines, starts, strict=True) if not line.startswith(start)] == []


_HEADER = "name,cpu_milli,memory_mib,num_gpu\n"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "p.csv",
            f"{_HEADER}a,{'9' * 5000},1,0\n",
            f': line 2: cpu_milli: "{"9" * 76}... is not a whole number from 0',
        ),
        ("p.csv", f"{_HEADER}a,1,1,0\n{'n' * 140_000},1,1,0\n", ": line 3: is not CSV: field larger than field limit"),
        ("p.csv", f"{_HEADER}a,\u0661,1,0\n", ': line 2: cpu_milli: "\u0661" is not a whole number'),
        ("p.csv", f"{_HEADER}a,1,1,0,7\n", ": line 2: has 5 cells, expected 4, one for each column"),
        ("p.csv", "name,cpu_milli,memory_mib,num_gpu, name\n", ": line 1: the column name occurs twice"),
        ("p.csv", "", ": line 1: no column name, cpu_milli, memory_mib, num_gpu; expected name,"),
        ("l.yaml", "kind: Service\n---\n&a {kind: List, items: [*a]}", ": line 3: contains itself"),
        ("m.yaml", "kind: Pod\nspec: &a\n  containers: *a\n", ": line 2: contains itself"),
        ("j.json", '{"kind": "Pod", "spec": ' + "9" * 5000 + "}", ": the document in line 1: is not YAML: Exceeds"),
        ("j.json", '{"kind": "List", "items": ' + "[" * 100_000, ": line 1: is nested more deeply than any"),
        (
            "n.yaml",
            "kind: Service\n---\nkind: Service\nspec: " + "9" * 5000,
            ": the document in line 3: is not YAML: Exceeds",
        ),
        (
            "d.yaml",
            "kind: Service\nmade: 2024-13-45\n",
            ": the document in line 1: is not YAML: month must be in 1..12",
        ),
        ("f.yaml", "kind: List\nitems: " + "[" * 200_000, ": line 2: is nested more deeply than any Kubernetes object"),
        ("e.yaml", "kind: List\nitems: " + "[[], {}, " * 20_000, ": line 2: is nested more deeply than any Kubernetes"),
        ("b.yaml", "- " * 200_000, ": line 1: is nested more deeply than any Kubernetes object"),
        ("y.yaml", "kind: Pod\nspec: }\n", ": is not YAML: line 2: "),
        ("k.yaml", "kind: Pod\nspec: {}\nspec: {}\n", ': line 3: duplicate key "spec", first in line 2'),
        ("k.json", '{"kind": "Pod", "spec": {}, "kind": "Pod", "kind": "Pod"}', ': duplicate key "kind"'),
        ("k.json", '{"kind": "List", "items": [{"spec": {"a": 1, "a": 2}}]}', ': items[0].spec: duplicate key "a"'),
    ],
    ids=lambda value: value[:20] if len(value) < 200 else "long",
)
def test_nothing_in_a_file_is_a_defect_of_the_reader(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidInput) as raised:
        read([path])
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{path}{problem}")
    assert len(line) < len(str(path)) + 250


def test_all_duplicate_keys_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    yaml, json = tmp_path / "all.yaml", tmp_path / "all.json"
    yaml.write_text("kind: Pod\nspec: {a: 1, a: 2}\nkind: Pod\n")
    json.write_text('{"kind": "Pod", "kind": "Pod",\n"spec": {"b": [{"a": 1, "a": 2, "c": 1, "c": 2}]}}')
    with pytest.raises(InvalidInput) as raised:
        read([yaml, json])
    assert str(raised.value).splitlines() == [
        f'{yaml}: line 3: duplicate key "kind", first in line 1',
        f'{yaml}: line 2: duplicate key "a", first in line 2',
        f'{json}: duplicate key "kind"',
        f'{json}: spec.b[0]: duplicate key "a"',
        f'{json}: spec.b[0]: duplicate key "c"',
    ]


def test_a_duplicate_key_leaves_the_other_documents_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text("kind: Service\nkind: Pod\n---\n{kind: Service, spec: {<<: {a: 1}, a: 2, b: 1, b: 1}}\n---\n7\n")
    with pytest.raises(InvalidInput) as raised:
        read([path])
    assert str(raised.value).splitlines() == [
        f'{path}: line 2: duplicate key "kind", first in line 1',
        f'{path}: line 4: duplicate key "b", first in line 4',
        f"{path}[2]: expected a Kubernetes object, found 7",
    ]


def test_aliases_are_not_multiplied_beyond_any_cluster(tmp_path: Path) -> None:
    bomb = ["a0: &a0 {kind: Pod}"]
    bomb += [f"a{n}: &a{n} {{kind: List, items: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    path = tmp_path / "all.yaml"
    path.write_text("\n".join([*bomb, "kind: List", "items: [*a9]"]))
    with pytest.raises(InvalidInput, match=r"stands for more than 10000000 values, aliases written out$"):
        read([path])
    path.write_text("kind: List\nitems:\n- &a {kind: Pod, spec: {containers: [{}]}}\n- *a\n")
    assert [p.count for p in read([path]).pod_sets] == [2]


def test_a_table_as_spreadsheets_write_it(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_bytes("\ufeffname, cpu_milli ,memory_mib,num_gpu\r\na, 500 ,1024,0\r\n\r\n,,,\r\n".encode())
    assert [(p.name, p.count) for p in read([path]).pod_sets] == [("default/a", 1)]


def test_every_error_of_the_objects_is_told_at_once_with_its_path(tmp_path: Path) -> None:
    problems = _problems(
        tmp_path,
        "just text",
        {"metadata": {}},
        _object("Pod", "p", {}),
        _workload("Deployment", "web", cpu="lots", replicas=-1),
        _object("ProvisioningRequest", "r", {"podSets": [{"podTemplateRef": {"name": "gone"}, "count": 1}]}),
        _object("ProvisioningRequest", "empty", {}),
        _object("PriorityClass", "high"),
        _object("Node", "n"),
    )
    starts = [
        '[0]: expected a Kubernetes object, found "just text"',
        "[1]: has no kind",
        "[2] (Pod default/p): spec.containers: missing",
        "[3] (Deployment default/web): spec.replicas: -1 is not a whole number",
        '[3] (Deployment default/web): spec.template.spec.containers[0].resources.requests.cpu: "lots" is not',
        "[4] (ProvisioningRequest default/r): spec.podSets[0].podTemplateRef.name: there is no",
        "[5] (ProvisioningRequest default/empty): spec.podSets: missing",
        "[6] (PriorityClass default/high): value: null is not a whole number",
        "[7] (Node default/n): status.allocatable: missing",
    ]
    assert len(problems) == len(starts)
    for start in starts:
        assert any(problem.startswith(start) for problem in problems), (start, problems)


_FIELDS = [
    "spec",
    "template",
    "containers",
    "resources",
    "requests",
    "cpu",
    "metadata",
    "annotations",
    "podSets",
    "count",
    "status",
    "phase",
    "allocatable",
    "ownerReferences",
    "affinity",
    "nodeAffinity",
    "tolerations",
    "jobTemplate",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
    "matchExpressions",
    "values",
    "key",
    "operator",
    "podTemplateRef",
    "name",
    "ports",
    "topologySpreadConstraints",
    "priorityClassName",
    "taints",
]
_KINDS = [
    "Pod",
    "Deployment",
    "Job",
    "CronJob",
    "DaemonSet",
    "Node",
    "PodTemplate",
    "ProvisioningRequest",
    "PriorityClass",
    "List",
    "PodList",
    "Service",
]
_junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("abc", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=4),
    max_leaves=12,
)
_parts = dict.fromkeys(("metadata", "spec", "items", "template", "status", "value"), _junk)
_objects = st.fixed_dictionaries({"kind": st.sampled_from(_KINDS)}, optional=_parts)


@examples(150)
@given(st.lists(_objects, min_size=1, max_size=3))
def test_whatever_is_in_a_manifest_it_is_read_or_refused_for_people(tmp_path: Path, objects: list[Any]) -> None:
    path = tmp_path / "junk.json"
    path.write_text(json.dumps({"kind": "List", "items": objects}))
    try:
        assert isinstance(read([path]), FromFiles)
    except InvalidInput as error:
        assert all(line.startswith(str(path)) for line in str(error).splitlines())  # noqa: PT017


def test_pods_of_other_schedulers_count_where_they_run_and_are_not_planned(tmp_path: Path) -> None:
    foreign = _pod_spec("1500m", schedulerName="volcano")
    node = _object("Node", "n1") | {"status": {"allocatable": {"cpu": 2, "memory": "4Gi", "pods": 10}}}
    objects = (
        node,
        _object("Pod", "runs", {**foreign, "nodeName": "n1"}),
        _object("Pod", "waits", foreign),
        _object("Deployment", "d", {"replicas": 3, "template": {"spec": foreign}}),
        _object("Pod", "named", _pod_spec(schedulerName="default-scheduler")),
    )
    found = _read(tmp_path, *objects)
    assert [pod_set.name for pod_set in found.pod_sets] == ["default/named"]
    assert found.nodes[0].free["cpu"] == 500
    (warning,) = found.warnings
    assert warning == (
        "left out 4 pods of schedulers that are not planned for, for example default/waits of volcano;"
        " --scheduler names those that are"
    )
    found = read([tmp_path / "all.yaml"], schedulers={"volcano"})
    assert [(pod_set.name, pod_set.count) for pod_set in found.pod_sets] == [("default/d", 4)]
    assert "example default/named of default-scheduler" in found.warnings[0]


def test_a_pod_that_is_resized_in_place_takes_what_was_allocated(tmp_path: Path) -> None:
    node = _object("Node", "n1") | {"status": {"allocatable": {"cpu": 4, "memory": "4Gi", "pods": 10}}}
    status = {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}], "phase": "Running"}
    found = _read(tmp_path, node, _object("Pod", "p", _pod_spec("1", nodeName="n1"), status=status))
    assert found.nodes[0].free["cpu"] == 1000


def test_a_runtime_class_adds_overhead_and_places_to_pods_and_templates(tmp_path: Path) -> None:
    kata = _object("RuntimeClass", "kata") | {
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"runtime": "kata"}},
    }
    spec = _pod_spec("1", runtimeClassName="kata")
    admitted = {**spec, "overhead": {"cpu": "250m"}, "nodeSelector": {"runtime": "kata"}}
    workloads = (_workload("Deployment", "d"), _object("Pod", "p", admitted, metadata={"uid": "u"}))
    workloads[0]["spec"]["template"]["spec"] = spec
    daemons = _workload("DaemonSet")
    daemons["spec"]["template"]["spec"] = spec
    found = _read(tmp_path, *workloads, kata, daemons)
    expected = PodSpec((("cpu", 1250),), node_selector=(("runtime", "kata"),))
    assert [(pod_set.spec, pod_set.count) for pod_set in found.pod_sets] == [(expected, 2)]
    (daemon,) = found.daemon_sets
    assert (daemon.requests, daemon.node_selector) == (expected.requests, expected.node_selector)
    assert not found.warnings
    (warning,) = _read(tmp_path, *workloads).warnings
    assert warning == (
        "RuntimeClass kata is not in the files; overhead and places that it gives its pods, for example default/d, were"
        " left out"
    )


def test_nothing_is_opened_for_a_pod_that_is_being_deleted_or_expendable(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _object("Pod", "going", _pod_spec(), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        _object("Pod", "expendable", _pod_spec(priority=-11)),
    )
    assert not found.pod_sets
    assert found.warnings == (
        "left out pods that are being deleted: 1, for example default/going",
        "left out 1 pod of a priority below -10, for which no nodes are added, for example default/expendable",
    )


def test_a_pod_that_the_scheduler_has_nominated_has_its_room_where_that_node_is_there(tmp_path: Path) -> None:
    node = _object("Node", "n1") | {"status": {"allocatable": {"cpu": 4, "memory": "4Gi", "pods": 10}}}
    pods = [_object("Pod", on, _pod_spec(), status={"nominatedNodeName": on}) for on in ("n1", "gone")]
    found = _read(tmp_path, node, *pods)
    assert [each.name for each in found.pod_sets] == ["default/gone"]
    assert found.nodes[0].free["cpu"] == 3000
    assert found.warnings == (
        "left out 1 pod that the scheduler has nominated to a node, where room is kept, for example default/n1",
    )


def test_nothing_is_planned_onto_nodes_that_are_not_ready(tmp_path: Path) -> None:
    def node(name: str, *conditions: dict[str, str]) -> dict[str, Any]:
        return _object("Node", name, status={"allocatable": {"cpu": "4"}, "conditions": list(conditions)})

    found = _read(
        tmp_path,
        node("does-not-say"),
        node("ready", {"type": "Ready", "status": "True"}),
        node("lost", {"type": "Ready", "status": "Unknown"}),
    )
    assert {each.name: each.free.get("pods") for each in found.nodes} == {
        "does-not-say": None,
        "ready": None,
        "lost": 0,
    }
    assert found.warnings == ("nothing is planned onto nodes that are not Ready: 1, for example lost",)


def test_new_nodes_have_the_labels_that_clouds_and_drivers_set(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    path.write_text("")
    group = NodeGroup("g", {"cpu": 1000}, 1.0, instance_type="m5.large", zone="eu-central-1a")
    (new,) = read([path], groups=[group]).groups
    assert new.labels.items() >= {
        ("topology.kubernetes.io/zone", "eu-central-1a"),
        ("topology.ebs.csi.aws.com/zone", "eu-central-1a"),
        ("node.kubernetes.io/instance-type", "m5.large"),
    }


def test_volumes_of_templates_are_read(tmp_path: Path) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "lost"}}]
    deployment = _workload("Deployment", replicas=2)
    deployment["spec"]["template"]["spec"]["volumes"] = volumes
    classes = _object("StorageClass", "fast") | {"provisioner": "p"}
    (found,) = _read(tmp_path, deployment, classes).pod_sets
    assert found.spec.unschedulable == 'persistentvolumeclaim "lost" not found'


def test_a_job_set_has_the_pods_that_it_creates_now(tmp_path: Path) -> None:
    assert _counts(_read(tmp_path, _job_set((2, {"parallelism": 4, "completions": 3}), (1, {})))) == [7]
    found = _read(tmp_path, _job_set((2, {}), (3, {}), startupPolicy={"startupPolicyOrder": "InOrder"}))
    assert _counts(found) == [2]
    (warning,) = found.warnings
    assert warning == (
        "left out replicated jobs that start after others of their JobSet: 1, for example default/x-part-1"
    )
    assert not _read(tmp_path, _job_set((2, {}), suspend=True)).pod_sets
    ended = {**_job_set((2, {})), "status": {"conditions": [{"type": "Completed", "status": "True"}]}}
    assert not _read(tmp_path, ended).pod_sets
    jobs = _workload("Job", "x-part-0-0", parallelism=2)
    jobs["metadata"].update(_owned_by("JobSet", "x"))
    assert _counts(_read(tmp_path, _job_set((2, {})), jobs)) == [2], "whose Jobs are there has created them"


def test_pods_of_a_job_set_that_cannot_be_read_are_told_with_their_path(tmp_path: Path) -> None:
    bad = _job_set((2, {"parallelism": "many", "template": {"spec": _pod_spec("lots")}}))
    path = "[0] (JobSet default/x): spec.replicatedJobs[0].template.spec"
    first, second = _problems(tmp_path, bad)
    assert first.startswith(f"{path}.template.spec.containers[0].resources.requests.cpu: ")
    assert second.startswith(f'{path}.parallelism: "many"')


def _quota(hard: dict[str, Any], used: dict[str, Any] | None = None) -> dict[str, Any]:
    status = {} if used is None else {"status": {"hard": hard, "used": used}}
    return _object("ResourceQuota", "q", {"hard": hard}, **status)


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        (_quota({"requests.cpu": "3", "pods": "9"}), 2),
        (_quota({"cpu": "9", "count/pods": "5"}), 4),
        (_quota({"cpu": "9"}, {"cpu": "7500m"}), 1),
        (_quota({"cpu": "9"}, {"cpu": "10"}), 0),
        (_quota({"limits.cpu": "1"}), 5),
    ],
)
def test_workloads_create_the_pods_that_quotas_have_room_for(tmp_path: Path, quota: Any, count: int) -> None:
    there = {**_object("Pod", "there", _pod_spec("1"), metadata={"labels": {"a": "b"}}), "status": {"phase": "Pending"}}
    found = _read(tmp_path, quota, _workload("Deployment", replicas=5), there)
    assert sum(_counts(found)) == count + 1
    left_out = [each for each in found.warnings if "ResourceQuota" in each]
    many = "pod" if count == 4 else "pods"
    said = f"left out {5 - count} {many} that a ResourceQuota has no room for, for example of default/x"
    assert left_out == ([said] if count < 5 else [])


def test_a_quota_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, _quota({"cpu": "lots"}))
    assert problem.startswith("[0] (ResourceQuota default/q): status.hard")
