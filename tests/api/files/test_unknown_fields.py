"""Fields that Kubernetes' kinds do not have, in objects of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.files.unknown_fields import checked
from cagrpc.cli.main import main
from cagrpc.cluster.documents import READ, followed_kinds

POD = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}


def problems_of(kind: str, version: str = "v1", metadata: Any = None, **fields: Any) -> list[str]:
    body = {"apiVersion": version, "kind": kind, "metadata": metadata or {"name": "a"}, **fields}
    problems: list[str] = []
    document = ManifestDocument("f.yaml[0]", {key: value for key, value in body.items() if value})
    assert list(checked([document], READ, problems)) == [document]
    return [each.removeprefix("f.yaml[0]: ") for each in problems]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nodeSelectr": {"a": "b"}}, 'spec.nodeSelectr: unknown field; did you mean "nodeSelector"?'),
        ({"tolerations": [{}, {"efect": "x"}]}, 'spec.tolerations[1].efect: unknown field; did you mean "effect"?'),
        ({"affinity": {"nodeAfinity": {}}}, 'spec.affinity.nodeAfinity: unknown field; did you mean "nodeAffinity"?'),
        ({"volumes": [{"emptydir": {}}]}, 'spec.volumes[0].emptydir: unknown field; did you mean "emptyDir"?'),
        ({"containers": [{"resources": {"requets": {}}}]},
         'spec.containers[0].resources.requets: unknown field; did you mean "requests"?'),
        ({"containers": [{"requets": {"cpu": 1}}]},
         'spec.containers[0].requets: unknown field; did you mean "resources.requests"?'),
        ({"containers": [{"requests": {"cpu": 1}}]},
         'spec.containers[0].requests: unknown field; did you mean "resources.requests"?'),
        ({"bogus": 1}, "spec.bogus: unknown field"),
        ({8080: 1}, "spec.8080: unknown field"),
        ({"null": None}, "spec.null: unknown field"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_told_with_the_one_that_is_meant(change: dict[Any, Any], problem: str) -> None:
    assert problems_of("Pod", spec={**POD, **change}) == [problem]
    template = {"spec": {**POD, **change}}
    for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"):
        found = problems_of(kind, "apps/v1", spec={"template": template})
        assert found == [f"spec.template.{problem}"]
    assert problems_of("PodTemplate", template=template) == [f"template.{problem}"]
    jobs = {"jobTemplate": {"spec": {"template": template}}}
    assert problems_of("CronJob", "batch/v1", spec=jobs) == [f"spec.jobTemplate.spec.template.{problem}"]


def test_what_is_free_in_its_names_is_not_looked_at() -> None:
    metadata = {"name": "a", "labels": {"x": "y"}, "annotations": {"x/y": "z"}}
    spec = {**POD, "nodeSelector": {"x": "y"}, "overhead": {"example.com/gpu": 1}, "topologySpreadConstraints": None}
    assert problems_of("Pod", metadata=metadata, spec=spec) == []
    assert problems_of("Pod", spec="text") == []
    assert problems_of("Pod", spec={"containers": {"a": 1}}) == []


@pytest.mark.parametrize("field", ["uid", "resourceVersion", "managedFields"])
def test_what_a_server_has_kept_is_not_looked_at_as_it_may_be_newer(field: str) -> None:
    assert problems_of("Pod", metadata={"name": "a", field: "x"}, spec={**POD, "fieldOf140": 1}) == []


def test_kinds_of_others_and_what_planning_does_not_read_are_not_looked_at() -> None:
    assert problems_of("Job", "batch.volcano.sh/v1", spek={"a": 1}) == []
    assert problems_of("JobSet", "jobset.x-k8s.io/v1", spek={"a": 1}) == []
    assert problems_of("PodGroup", "scheduling.k8s.io/v1alpha2", spek={"a": 1}) == []
    assert problems_of("Service", spek={"a": 1}) == []
    assert problems_of("Pod", "", spek={"a": 1}) == ['spek: unknown field; did you mean "spec"?']


def test_every_v1_kind_that_is_read_has_a_schema() -> None:
    versions = {(path.split("/", 2)[2].rpartition("/")[0], kind) for path, kind in followed_kinds()}
    of_v1 = {(version, kind) for version, kind in versions if version.endswith("v1")}
    assert len(of_v1) >= 18
    assert [kind for version, kind in sorted(of_v1) if not problems_of(kind, version, bogus=1)] == []


def test_all_of_all_files_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods, nodes, pools = tmp_path / "pods.yaml", tmp_path / "nodes.json", tmp_path / "pools.yaml"
    pods.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, resources: {requets: {}}}]}}"
    )
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "statsu": {"allocatable": {"cpu": "1"}}}
    nodes.write_text(json.dumps(node))
    pools.write_text("[]")
    for command in ("plan", "explain"):
        assert main([command, "--pods", str(pods), "--nodes", str(nodes), "--provisioners", str(pools)]) == 2
        said = capsys.readouterr().err
        field = "spec.containers[0].resources.requets"
        assert f'{pods}[0] (Pod default/a): {field}: unknown field; did you mean "requests"?' in said
        assert f'{nodes}[0] (Node default/n): statsu: unknown field; did you mean "status"?' in said
    assert main(["report", "--nodes", str(nodes)]) == 2
    assert "statsu: unknown field" in capsys.readouterr().err
