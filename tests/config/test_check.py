"""`config check` and `config schema`, and the recordings' node groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cagrpc.config.check import check_files, schema_text
from cagrpc.config.schema.recorded import read_recorded_groups
from cagrpc.errors import InvalidConfiguration
from solver.model import UNLIMITED_SIZE

ROOT = Path(__file__).parents[2]
DATA = ROOT / "cagrpc" / "data"
THREE = DATA / "recordings" / "three-deployments.groups.json"


def test_the_published_schema_is_up_to_date() -> None:
    published = (ROOT / "docs" / "reference" / "config.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), "write it anew: cagrpc config schema > docs/reference/config.schema.json"


def test_the_schema_describes_every_section() -> None:
    schema = json.loads(schema_text())
    assert "required" not in schema
    assert schema["additionalProperties"] is False
    deadline = schema["properties"]["increment_deadline"]
    assert (deadline["type"], deadline["default"]) == ("string", "10m")
    assert schema["properties"]["increment_deadline_seconds"]["deprecated"]
    forms = {option["$ref"].rsplit("/", 1)[1] for option in schema["properties"]["provisioners"]["items"]["oneOf"]}
    assert forms == {"ProvisionerForm", "ProvisionerFile", "NodePool", "ProvisionerV1Alpha5"}
    assert schema["$defs"]["ProvisionerForm"]["properties"]["weight"]["anyOf"][0] == {
        "type": "integer", "minimum": 1, "maximum": 100,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind", "summary"),
    [
        (DATA / "default.yaml", "configuration", "node groups (weight 100: 2, weight 50: 1, weight 10: "),
        (DATA / "catalog" / "aws-us-east-1.csv", "catalogue", "1,345 instance types, 1,345 offerings"),
        (DATA / "provisioners" / "default-and-arm64.yaml", "provisioners", "(weight 100: 949, weight 50: 396)"),
        (THREE, "node groups", "3 node groups"),
    ],
)
def test_each_kind_of_file_is_recognised(path: Path, kind: str, summary: str) -> None:
    (checked,) = check_files([path])
    assert not checked.problems
    assert checked.kind == kind
    assert summary in checked.summary


@pytest.mark.parametrize(
    "text",
    [
        "name: any\nweight: 5\nrequirements: [{key: kubernetes.io/arch, operator: In, values: [arm64]}]",
        "- name: any\n  weight: 5",
        '{"name": "any", "weight": 5}',
    ],
)
def test_provisioners_in_our_own_form_are_recognised(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    (checked,) = check_files([path])
    assert (checked.kind, checked.problems) == ("provisioners", ())
    assert "(weight 5: " in checked.summary


def test_a_field_of_another_place_is_not_suggested_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("provisioners: [{name: p}]\nweight: 5\nlimts: {}\n")
    (checked,) = check_files([path])
    assert sorted(checked.problems) == ['limts: unknown field; did you mean "limits"?', "weight: unknown field here"]


def test_files_are_checked_apart(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("provisioners: [{name: p, weight: 0}]\nlimits: {cpu: x}")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "pool.yaml").write_text("apiVersion: karpenter.sh/v1\nkind: NodePool")
    report = check_files([tmp_path / name for name in ("bad.yaml", "broken.yaml", "no.csv", "pool.yaml")] + [THREE])
    assert [(file.kind, len(file.problems)) for file in report] == [
        ("configuration", 2), ("unknown", 1), ("catalogue", 1), ("provisioners", 2), ("node groups", 0),
    ]  # fmt: skip


def test_warnings_are_told_of_sound_files() -> None:
    (checked,) = check_files([DATA / "provisioners" / "reserved-and-fallback.yaml"])
    assert not checked.problems
    assert len(checked.warnings) == 1


@pytest.mark.parametrize(
    ("kueue", "said"),
    [
        ("", False),
        ("kueue: {}", True),
        ("kueue: {controller_name: example.com/check}", True),
        ("kueue: {controller_name: kueue.x-k8s.io/provisioning-request}", False),
        ("kueue: {enabled: false}", False),
    ],
)
def test_a_configuration_for_kueue_says_what_topologies_need(kueue: str, said: bool, tmp_path: Path) -> None:
    (tmp_path / "cagrpc.yaml").write_text(
        f"kubernetes: {{kubeconfig: none}}\nprovisioners: [{{name: a, limits: {{nodes: 5}}}}]\n{kueue}\n"
    )
    (checked,) = check_files([tmp_path / "cagrpc.yaml"])
    assert not checked.problems
    of_kueue = [each for each in checked.warnings if each.startswith("kueue: ")]
    assert len(of_kueue) == said
    assert all('"kueue.x-k8s.io/provisioning-request" alone' in each for each in of_kueue)


def test_recorded_groups() -> None:
    recorded = read_recorded_groups(THREE)
    assert [each.id for each in recorded] == ["m7i.large", "m7i.4xlarge", "m7g.xlarge"]
    large = recorded[0]
    assert large.allocatable == {"cpu": 1930, "memory": 6903 * 2**20, "pods": 29}
    assert (large.price_usd_per_hour, large.max_size, large.zone) == (0.1008, UNLIMITED_SIZE, "zone-a")
    assert large.labels == {
        "node.kubernetes.io/instance-type": "m7i.large",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": "zone-a",
        "example.com/node-group": "m7i.large",
    }


def test_faults_of_recorded_groups_are_passed_over(tmp_path: Path) -> None:
    shape = {"cpu_milli": 1, "memory_mib": 1, "pods": 1, "price": 1}
    faults = {"stockout": 1, "fail_instances": 1, "atomic_fail": 1, "startup": 1}
    (tmp_path / "g.json").write_text(json.dumps({"groups": {"gpu": {**shape, **faults, "gpu": 2}}}))
    (found,) = read_recorded_groups(tmp_path / "g.json")
    assert found.allocatable["nvidia.com/gpu"] == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("{}", "g.json: groups: is missing", id="no groups"),
        pytest.param('{"groups": {}}', "g.json: groups: found {}, expected at least 1", id="not one"),
        pytest.param('{"groups": {"g": {"cpu_mili": 1, "cpu_milli": 1, "memory_mib": 1, "pods": 1, "price": 1}}}',
                     'g.json: groups.g.cpu_mili: unknown field; did you mean "cpu_milli"?', id="misspelt"),
        pytest.param('{"groups": {"m7i.large": {"cpu_milli": -1, "memory_mib": 1, "pods": 1, "price": 1}}}',
                     'g.json: groups["m7i.large"].cpu_milli: found -1, expected 1 or more', id="negative"),
        pytest.param("{", "g.json:1:2: is not YAML", id="cut short"),
        pytest.param("", "g.json: has 0 documents", id="empty"),
    ],
)  # fmt: skip
def test_bad_files_of_recorded_groups(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(InvalidConfiguration) as caught:
        read_recorded_groups(tmp_path / "g.json")
    assert caught.value.problems[0].startswith(f"{tmp_path}/{problem}")


def test_a_group_that_was_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps([{"name": "any", "node_groups": [{"file": str(THREE), "ids": ["m7i.lrge"]}]}]))
    (checked,) = check_files([path])
    assert checked.problems[0].endswith('has no group "m7i.lrge"; did you mean "m7i.large"?')


def test_files_of_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    groups = "provisioners: [{name: a, node_groups: [{id: g, instance_type: m7i.large, zone: zone-a}]}]\n"
    (tmp_path / "there.key").touch()
    path = tmp_path / "cagrpc.yaml"
    path.write_text(f"{groups}tls: {{certificate: a.crt, key: there.key, client_ca: ca.crt}}\n")
    (checked,) = check_files([path])
    assert not checked.problems
    assert list(checked.warnings) == [
        f"tls.certificate: {tmp_path / 'a.crt'} is not there; `cagrpc serve` needs it",
        f"tls.client_ca: {tmp_path / 'ca.crt'} is not there; `cagrpc serve` needs it",
    ]
    path.write_text(groups)  # made by `serve`
    assert not check_files([path])[0].warnings


def test_no_field_is_suggested_that_is_not_known_there(tmp_path: Path) -> None:
    path = tmp_path / "cagrpc.yaml"
    path.write_text("expander: {mod: shadow, providers: x, budgets: 1s}\n")
    (checked,) = check_files([path])
    said = [each for each in checked.problems if "unknown field" in each]
    assert said == [
        'expander.mod: unknown field; did you mean "mode"?',
        "expander.providers: unknown field",
        "expander.budgets: unknown field here",
    ]
