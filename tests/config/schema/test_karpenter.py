"""Karpenter documents: the fields that count, the ones that are passed over, the ones that are refused; and the use
cases of the provisioner-priority design over a catalogue that has reserved offerings and p3 types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.config.files import load_provisioners
from cagrpc.config.groups import Expanded
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, parse_catalogue
from cagrpc.fleet.provisioners import Provisioner
from solver.model import Operator, Requirement, Taint, TaintEffect

EXAMPLES = Path(__file__).parents[3] / "cagrpc" / "data" / "provisioners"

EXTENDED = """\
instance_type,arch,category,family,generation,size,vcpu,memory_mib,gpu_name,allocatable_cpu_milli,allocatable_memory_mib,\
allocatable_pods,allocatable_gpu,usd_per_hour,zone,capacity_type,available
m5.large,amd64,m,m5,5,large,2,8192,,1930,6903,29,0,0.096,,,
m5.2xlarge,amd64,m,m5,5,2xlarge,8,32768,,7910,29317,58,0,0.384,,,
m5.2xlarge,amd64,m,m5,5,2xlarge,8,32768,,7910,29317,58,0,0,,reserved,4
m6g.large,arm64,m,m6g,6,large,2,8192,,1930,6903,29,0,0.077,,,
p3.8xlarge,amd64,p,p3,3,8xlarge,32,249856,v100,31850,228000,234,4,12.24,,,
p3.16xlarge,amd64,p,p3,3,16xlarge,64,499712,v100,63770,460000,234,8,24.48,,,
"""


@pytest.fixture(scope="module")
def extended() -> Catalogue:
    return parse_catalogue(EXTENDED, "extended.csv")


def node_pool(**spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = {"spec": {"requirements": []}}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "pool"},
        "spec": {"template": template, **spec},
    }


def old_provisioner(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": {"name": "old"},
        "spec": spec,
    }


def load(tmp_path: Path, *documents: Any) -> Expanded:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return load_provisioners([path], embedded_catalogue())


def problems(tmp_path: Path, *documents: Any) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        load(tmp_path, *documents)
    return [problem.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


def tiers(expanded: Expanded) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {provisioner.weight: set() for provisioner in expanded.provisioners}
    for group in expanded.groups:
        found[group.weight].add(group.id)
    return found


def test_amd64_is_preferred_and_arm64_there_for_who_asks(extended: Catalogue) -> None:
    expanded = load_provisioners([EXAMPLES / "default-and-arm64.yaml"], extended)
    found = tiers(expanded)
    assert found[50] == {"arm64/m6g.large/zone-a/on-demand"}
    assert len(found[100]) == 5
    assert {group.labels["kubernetes.io/arch"] for group in expanded.groups if group.weight == 100} == {"amd64"}
    assert not expanded.warnings


def test_reserved_offerings_come_before_the_fallback(extended: Catalogue) -> None:
    expanded = load_provisioners([EXAMPLES / "reserved-and-fallback.yaml"], extended)
    assert tiers(expanded) == {
        50: {"reserved/m5.2xlarge/zone-a/reserved"},
        0: {
            "fallback/m5.large/zone-a/on-demand",
            "fallback/m5.2xlarge/zone-a/on-demand",
            "fallback/m5.2xlarge/zone-a/reserved",
        },
    }
    assert next(group.max_size for group in expanded.groups if group.weight == 50) == 4, "as many as are reserved"
    assert not expanded.warnings


def test_tainted_gpu_types_are_tried_first(extended: Catalogue) -> None:
    expanded = load_provisioners([EXAMPLES / "tainted-gpu-and-fallback.yaml"], extended)
    found = tiers(expanded)
    taint = Taint("custom-workloads", TaintEffect.NO_SCHEDULE, "true")
    assert found[100] == {
        "custom-workloads/p3.8xlarge/zone-a/on-demand",
        "custom-workloads/p3.16xlarge/zone-a/on-demand",
    }
    assert [group.taints for group in expanded.groups if group.weight == 100] == [(taint,), (taint,)]
    assert all(not group.taints for group in expanded.groups if group.weight == 50)
    assert len(found[50]) == 5
    assert not expanded.warnings


def test_a_small_and_a_large_type_under_opposite_weights(tmp_path: Path, extended: Catalogue) -> None:
    """The design's caveat: what is dear and heavy comes first all the same."""
    path = tmp_path / "p.yaml"
    expensive = {
        "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p3.16xlarge"]}]
    }
    path.write_text(yaml.safe_dump(old_provisioner(**expensive, weight=100)))
    assert tiers(load_provisioners([path], extended)) == {100: {"old/p3.16xlarge/zone-a/on-demand"}}


@pytest.mark.parametrize(
    ("name", "weights", "warned"),
    [
        ("amd64.yaml", {0}, 0),
        ("default-and-arm64.yaml", {100, 50}, 0),
        ("reserved-and-fallback.yaml", {50, 0}, 1),
        ("tainted-gpu-and-fallback.yaml", {100, 50}, 1),
    ],
)
def test_the_examples_load_over_the_embedded_catalogue(name: str, weights: set[int], warned: int) -> None:
    expanded = load_provisioners([EXAMPLES / name], embedded_catalogue())
    assert {provisioner.weight for provisioner in expanded.provisioners} == weights
    assert expanded.groups
    assert len(expanded.warnings) == warned
    assert all("matches no instance type" in warning for warning in expanded.warnings)


ARM = {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}
TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
FULL = Provisioner(
    "pool",
    70,
    (Requirement("kubernetes.io/arch", Operator.IN, ("arm64",)),),
    {"team": "a"},
    (Taint("dedicated", TaintEffect.NO_SCHEDULE, "x"),),
    (Taint("booting", TaintEffect.NO_EXECUTE),),
    {"cpu": 10_000, "memory": 2**30, "nodes": 3},
)


@pytest.mark.parametrize("version", ["karpenter.sh/v1", "karpenter.sh/v1beta1"])
def test_every_field_of_a_node_pool(tmp_path: Path, version: str) -> None:
    document = node_pool(
        weight=70,
        limits={"cpu": "10", "memory": "1Gi", "nodes": 3},
        disruption={"consolidationPolicy": "WhenEmpty", "budgets": [{"nodes": "10%"}]},
        template={
            "metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}},
            "spec": {
                "requirements": [ARM],
                "taints": [TAINT],
                "startupTaints": [{"key": "booting", "effect": "NoExecute"}],
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                "expireAfter": "720h",
                "terminationGracePeriod": "1h",
                "kubelet": {"maxPods": 20},
            },
        },
    ) | {"apiVersion": version, "status": {"resources": {}}}
    expanded = load(tmp_path, document)
    assert expanded.provisioners == (FULL,)
    assert not expanded.warnings


def test_every_field_of_an_old_provisioner(tmp_path: Path) -> None:
    document = old_provisioner(
        weight=70,
        limits={"resources": {"cpu": 10, "memory": "1Gi", "nodes": 3}},
        requirements=[ARM],
        labels={"team": "a"},
        taints=[TAINT],
        startupTaints=[{"key": "booting", "effect": "NoExecute"}],
        ttlSecondsAfterEmpty=30,
        ttlSecondsUntilExpired=2_592_000,
        consolidation={"enabled": True},
        providerRef={"name": "default"},
        kubeletConfiguration={"maxPods": 20},
    )
    (found,) = load(tmp_path, document).provisioners
    assert found == Provisioner(
        "old", 70, FULL.requirements, FULL.labels, FULL.taints, FULL.startup_taints, FULL.limits,
        name_label="karpenter.sh/provisioner-name",
    )  # fmt: skip


def test_no_weight_is_0_and_equal_weights_are_one_tier(tmp_path: Path) -> None:
    first, second = node_pool(), old_provisioner()
    assert {group.weight for group in load(tmp_path, first, second).groups} == {0}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        pytest.param(
            node_pool(weight=0),
            "spec.weight: found 0, expected a whole number from 1 to 100, or leave it out",
            id="weight 0",
        ),
        pytest.param(node_pool(weight=101), "spec.weight: found 101", id="weight 101"),
        pytest.param(node_pool(weight="50"), 'spec.weight: found "50"', id="weight as text"),
        pytest.param(old_provisioner(weight=-1), "spec.weight: found -1", id="negative weight"),
        pytest.param(node_pool(replicas=3), "spec.replicas: found 3: a static NodePool (replicas)", id="static pool"),
        pytest.param(node_pool(wieght=3), 'spec.wieght: unknown field; did you mean "weight"?', id="misspelt field"),
        pytest.param(
            node_pool(template={"spec": {"requirments": []}}),
            'spec.template.spec.requirments: unknown field; did you mean "requirements"?',
            id="misspelt requirements",
        ),
        pytest.param(
            node_pool(limits={"resources": 1}),
            'spec.limits.resources: found "resources", expected the name of a resource',
            id="the old form of limits",
        ),
        pytest.param(
            old_provisioner(limits={"resources": {"cpu": "lots"}}),
            'spec.limits.resources.cpu: "lots" is not a quantity',
            id="no quantity",
        ),
        pytest.param(
            old_provisioner(requirements=[{"key": "k", "operator": "in", "values": ["v"]}]),
            'spec.requirements[0].operator: found "in", expected one of "In"',
            id="operator",
        ),
        pytest.param(
            old_provisioner(requirements=[ARM | {"minValues": 2}]),
            "spec.requirements[0].minValues: unknown field",
            id="minValues before its time",
        ),
        pytest.param(
            old_provisioner() | {"metadata": {"name": None}}, "metadata.name: is empty; give the provisioner a name",
            id="empty name",
        ),
        pytest.param(old_provisioner() | {"metadata": {}}, "metadata.name: is missing", id="no name"),
        pytest.param(
            {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "x"}},
            "spec: is missing",
            id="no spec",
        ),
        pytest.param(
            node_pool() | {"apiVersion": "karpenter.sh/v2"}, 'found apiVersion "karpenter.sh/v2", kind "NodePool"',
            id="a version to come",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, document: dict[str, Any], problem: str) -> None:
    (found,) = problems(tmp_path, document)
    assert found.startswith(("p.yaml[0].", "p.yaml[0]: "))
    assert problem in found


def test_every_problem_of_every_document(tmp_path: Path) -> None:
    found = problems(tmp_path, node_pool(weight=0, replicas=1), node_pool(limits={"cpu": -1}), {"kind": "Pod"})
    assert [problem.split(": ")[0] for problem in found] == [
        "p.yaml[0].spec.weight",
        "p.yaml[0].spec.replicas",
        "p.yaml[1].spec.limits.cpu",
        "p.yaml[2]",
        "p.yaml[1]",
    ]
    assert 'the name "pool" is taken by' in found[-1]


def test_two_pools_of_one_name_are_one_problem_however_many_groups_they_have(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, node_pool(), node_pool())
    assert found.startswith('p.yaml[1]: the name "pool" is taken by ')


def test_min_values_are_warned_about(tmp_path: Path) -> None:
    expanded = load(tmp_path, node_pool(template={"spec": {"requirements": [ARM | {"minValues": 5}]}}))
    (warning,) = expanded.warnings
    assert "p.yaml[0].spec.template.spec.requirements[0].minValues: is ignored" in warning


def test_documents_that_stand_beside_provisioners_are_passed_over_with_a_warning(tmp_path: Path) -> None:
    node_class = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "default"}}
    expanded = load(tmp_path, node_class, node_pool())
    assert [provisioner.name for provisioner in expanded.provisioners] == ["pool"]
    assert "p.yaml[0]: EC2NodeClass is not read" in expanded.warnings[0]


def test_a_list_as_kubectl_prints_it(tmp_path: Path) -> None:
    expanded = load(tmp_path, {"apiVersion": "v1", "kind": "List", "items": [node_pool(), old_provisioner()]})
    assert [provisioner.name for provisioner in expanded.provisioners] == ["pool", "old"]


def test_our_own_form_in_a_file_of_its_own(tmp_path: Path) -> None:
    expanded = load(tmp_path, {"name": "ours", "weight": 3, "node_groups": [{"id": "g", "instance_type": "m5.large"}]})
    assert [(group.id, group.weight) for group in expanded.groups] == [("g", 3)]


def test_the_same_name_in_two_files(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(yaml.safe_dump(node_pool()))
    with pytest.raises(InvalidConfiguration, match=r'b\.yaml\[0\]: the name "pool" is taken by .*a\.yaml\[0\]'):
        load_provisioners([tmp_path / "a.yaml", tmp_path / "b.yaml"], embedded_catalogue())


def test_a_file_without_documents(tmp_path: Path) -> None:
    assert problems(tmp_path) == ["p.yaml: has no documents; expected provisioners"]
