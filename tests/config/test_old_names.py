"""Fields that had other names, most of them durations as numbers of seconds: files with the old names are read as
before, and the new ones are named."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.config.load import parse_settings
from cagrpc.config.settings import Settings
from cagrpc.errors import InvalidConfiguration

BASE = """
provisioners: [{name: p, node_groups: [{id: g, instance_type: m7i.large, max_size: 3}]}]
kubernetes: {in_cluster: true}
"""
SIMULATED = f"{BASE}\nbackend: {{simulated: {{g: {{%s}}}}}}"
KARPENTER = f"""{BASE}
backend: {{karpenter: {{node_class: {{group: karpenter.k8s.aws, kind: EC2NodeClass, name: n}}, %s}}}}
"""
CLUSTER_API = f"""{BASE}
backend: {{cluster_api: {{cluster: c, provisioners: {{p: {{machine_deployment: d, %s}}}}}}}}
"""
OLD_AND_NEW = [
    (BASE, "increment_deadline_seconds: 120", "increment_deadline: 2m"),
    (BASE, "expander_budget_seconds: 0.5", "expander_budget: 500ms"),
    (BASE, "planner: {idle_seconds: 2}", "planner: {idle: 2s}"),
    (BASE, "planner: {window_seconds: 90.5}", "planner: {window: 1m30.5s}"),
    (BASE, "planner: {budget_seconds: 3}", "planner: {budget: 3s}"),
    (BASE, "planner: {shortage_seconds: 3600}", "planner: {shortage: 1h}"),
    (BASE, "planner: {progress_deadline_seconds: 30}", "planner: {progress_deadline: 30s}"),
    (BASE, "provisioning_requests: {booking_seconds: 30}", "provisioning_requests: {booking: 30s}"),
    (BASE, "provisioning_requests: {keep_seconds: 604800}", "provisioning_requests: {keep: 168h}"),
    (
        BASE,
        "provisioning_requests: {per_namespace: {overtaken_seconds: 60}}",
        "provisioning_requests: {per_namespace: {bypassed: 1m}}",
    ),
    (BASE, "autoscaling: {scale_down_unneeded_seconds: 60}", "autoscaling: {scale_down_unneeded_time: 1m}"),
    (BASE, "autoscaling: {scale_down_unready_seconds: 60}", "autoscaling: {scale_down_unready_time: 1m}"),
    (BASE, "autoscaling: {max_node_provision_seconds: 700}", "autoscaling: {max_node_provision_time: 11m40s}"),
    (KARPENTER, "unavailable_offerings_seconds: 0", "unavailable_offerings: 0s"),
    (KARPENTER, "termination_grace_period_seconds: 60", "termination_grace_period: 1m"),
    (CLUSTER_API, "node_drain_timeout_seconds: 0", "node_drain_timeout: 0s"),
]
OLD_AND_NEW += [
    (SIMULATED, f"{name}_seconds: 90", f"{name}: 1m30s")
    for name in ("boot", "boot_jitter", "delete", "fail_after", "vanish_after", "list_delay", "id_after")
]
CASES = [pytest.param(*each, id=re.findall(r"\w+_seconds", each[1])[0]) for each in OLD_AND_NEW]


def settings(base: str, written: str) -> Settings:
    return parse_settings(base % written if "%s" in base else base + written, "config.yaml", Path())


def _leaf(written: str) -> tuple[str, object]:
    found: dict[str, Any] = yaml.safe_load(written)
    while isinstance(value := next(iter(found.values())), dict):
        found = value
    return next(iter(found.items()))


@pytest.mark.parametrize(("base", "old", "new"), CASES)
def test_a_number_of_seconds_is_read_as_before(base: str, old: str, new: str) -> None:
    before, now = settings(base, old), settings(base, new)
    names = [each for each in before.warnings if each not in now.warnings]
    (said,) = names
    name, text = _leaf(new)
    assert re.search(rf'write (\S*\.)?{name}: "{text}" for (\S*\.)?{_leaf(old)[0]}$', said)
    assert replace(before, warnings=now.warnings) == now


@pytest.mark.parametrize(("base", "old", "new"), CASES)
def test_both_names_at_once_are_an_error_that_names_both(base: str, old: str, new: str) -> None:
    (old_name, number), (new_name, text) = _leaf(old), _leaf(new)
    both = old.replace(f"{old_name}: {number}", f"{old_name}: {number}, {new_name}: {text}")
    if base is BASE and old.startswith(old_name):  # at the top of the file
        both = f"{old}\n{new}"
    with pytest.raises(InvalidConfiguration) as caught:
        settings(base, both)
    (problem,) = caught.value.problems
    assert re.match(rf"(\S*\.)?{old_name}: found together with {new_name}, as it is called now", problem)


@pytest.mark.parametrize(("base", "old", "new"), CASES)
@pytest.mark.parametrize("found", ["-1", "true", "'5s'", "[1]"])
def test_what_is_no_number_of_seconds_is_refused_where_it_stands(base: str, old: str, new: str, found: str) -> None:
    (old_name, number), (new_name, _) = _leaf(old), _leaf(new)
    with pytest.raises(InvalidConfiguration) as caught:
        settings(base, old.replace(f"{old_name}: {number}", f"{old_name}: {found}"))
    (problem,) = caught.value.problems
    assert re.match(rf"(\S*\.)?{old_name}: found .*, expected {new_name}: a duration from ", problem)


@pytest.mark.parametrize(("base", "old", "new"), CASES)
def test_a_number_under_the_new_name_is_no_duration(base: str, old: str, new: str) -> None:
    name, text = _leaf(new)
    with pytest.raises(InvalidConfiguration) as caught:
        settings(base, new.replace(f"{name}: {text}", f"{name}: 5"))
    (problem,) = caught.value.problems
    assert re.match(rf'(\S*\.)?{name}: found 5, expected a duration from "', problem)


def test_all_old_names_of_a_file_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("name: more\nautoscaling: {scale_down_unready_seconds: 5}\n")
    text = """
provisioners: [{name: p, autoscaling: {scale_down_unneeded_seconds: 60}}, {file: more.yaml}]
planner: {idle_seconds: 2, budget_seconds: 3}
"""
    of_main, of_more = (
        each for each in parse_settings(text, "config.yaml", tmp_path).warnings if each.startswith("old names")
    )
    assert of_main.endswith(
        'write planner.idle: "2s" for planner.idle_seconds, planner.budget: "3s" for planner.budget_seconds,'
        ' provisioners[0].autoscaling.scale_down_unneeded_time: "1m" for'
        " provisioners[0].autoscaling.scale_down_unneeded_seconds"
    )
    assert f"{tmp_path}/more.yaml[0].autoscaling.scale_down_unready_time" in of_more


RENAMED = """
provisioners:
- name: p
  KEY: {gpu: a10g}
  node_groups: [{id: g, instance_type: m7i.large, KEY: {feature: x}}]
"""


def test_a_renamed_field_is_read_as_before() -> None:
    before, now = (settings(RENAMED.replace("KEY", name), "") for name in ("late_labels", "post_registration_labels"))
    (said,) = (each for each in before.warnings if each not in now.warnings)
    assert said.endswith(
        "write provisioners[0].post_registration_labels for provisioners[0].late_labels, provisioners[0].node_groups[0]"
        ".post_registration_labels for provisioners[0].node_groups[0].late_labels"
    )
    assert replace(before, warnings=now.warnings) == now
    (group,) = now.groups
    assert group.post_registration_labels == {"gpu", "feature"}


def test_a_renamed_field_under_both_names_is_an_error_that_names_both() -> None:
    both = RENAMED.replace("  KEY:", "  late_labels: {a: b}\n  KEY:", 1).replace("KEY", "post_registration_labels")
    with pytest.raises(InvalidConfiguration) as caught:
        settings(both, "")
    (problem,) = caught.value.problems
    assert problem.startswith("provisioners[0]: found late_labels together with post_registration_labels")
