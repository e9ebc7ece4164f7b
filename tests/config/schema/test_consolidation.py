"""The section consolidation and what provisioners say of disruption: what they become, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from cagrpc.config.load import parse_settings
from cagrpc.config.schema.karpenter import NodePoolDisruption
from cagrpc.controllers.settings import (
    ConsolidationMode,
    ConsolidationPolicy,
    ConsolidationSettings,
    NodeBudget,
    ProvisionerDisruption,
    RepairRule,
)
from cagrpc.errors import InvalidConfiguration
from cagrpc.runtime.schedules import Schedule, parse_cron

OWN = "provisioners: [{name: web, node_groups: [{id: g, instance_type: m7i.large}]}]\n"
CLUSTER = "kubernetes: {in_cluster: true}\n"


def consolidation(text: str, provisioners: str = OWN) -> ConsolidationSettings:
    settings = parse_settings(f"{provisioners}{CLUSTER}consolidation: {text}", "c.yaml", Path()).consolidation
    assert settings is not None
    return settings


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidConfiguration) as raised:
        parse_settings(text, "c.yaml", Path())
    return raised.value.problems


def node_pool(disruption: str, version: str = "karpenter.sh/v1") -> str:
    requirement = "{key: node.kubernetes.io/instance-type, operator: In, values: [m7i.large]}"
    spec = f"{{disruption: {disruption}, template: {{spec: {{requirements: [{requirement}]}}}}}}"
    return f"provisioners: [{{apiVersion: {version}, kind: NodePool, metadata: {{name: web}}, spec: {spec}}}]\n"


def test_without_the_section_or_when_off_nothing_is_consolidated() -> None:
    assert parse_settings(OWN, "c.yaml", Path()).consolidation is None
    for off in ("off", "'off'"):
        assert parse_settings(f"{OWN}consolidation: {{mode: {off}}}", "c.yaml", Path()).consolidation is None


def test_an_empty_section_is_a_dry_run_with_the_defaults() -> None:
    assert consolidation("{}") == ConsolidationSettings()
    assert ConsolidationSettings().mode is ConsolidationMode.DRY_RUN


@pytest.mark.parametrize("written", ["on", "'on'"])
def test_on_is_meant_however_yaml_reads_it(written: str) -> None:
    assert consolidation(f"{{mode: {written}}}").mode is ConsolidationMode.ON


def test_every_field() -> None:
    found = consolidation(
        """
  mode: dry-run
  every: 2m
  budget: 30s
  least_saving_usd_per_hour_per_pod: 0.01
  most_nodes_per_step: 7
  minimum_node_age: 1h
  skip_nodes_with_local_storage: false
  skip_nodes_with_system_pods: false
  step_deadline: 1h30m
  windows: [{cron: "0 1 * * *", time_zone: Europe/Berlin, duration: 4h}]
  budgets: [{nodes: 5}, {nodes: "20%", reasons: [Empty]}]
  pause_after_failure: 1m
  interruption_taints: [example.com/gone-soon]
  interruption_conditions: [VMEventScheduled]
  repair: [{condition: KernelDeadlock, status: "True", toleration: 5m}]
"""
    )
    assert found == ConsolidationSettings(
        mode=ConsolidationMode.DRY_RUN,
        every_seconds=120.0,
        budget_seconds=30.0,
        least_saving_usd_per_hour_per_pod=0.01,
        most_nodes_per_step=7,
        minimum_node_age_seconds=3600.0,
        skip_nodes_with_local_storage=False,
        skip_nodes_with_system_pods=False,
        step_deadline_seconds=5400.0,
        windows=(Schedule(parse_cron("0 1 * * *"), ZoneInfo("Europe/Berlin"), 4 * 3600.0),),
        budgets=(NodeBudget(5), NodeBudget("20%", reasons=frozenset({"Empty"}))),
        pause_after_failure_seconds=60.0,
        interruption_taints=frozenset({"example.com/gone-soon"}),
        interruption_conditions=frozenset({"VMEventScheduled"}),
        repair=(RepairRule("KernelDeadlock", "True", 300.0),),
    )


def test_a_provisioner_without_words_of_its_own_has_those_of_the_section() -> None:
    found = consolidation("{budgets: [{nodes: 3}]}")
    assert found.budgets_of("web") == (NodeBudget(3),)
    assert found.disruption_of("web") == ProvisionerDisruption()


def test_a_provisioner_in_our_own_form_has_its_own_budgets() -> None:
    own = OWN.replace("name: web,", "name: web, disruption: {consolidation_policy: WhenEmpty, budgets: []},")
    found = consolidation("{budgets: [{nodes: 3}]}", own)
    assert found.budgets_of("web") == ()
    assert found.disruption_of("web").consolidation_policy is ConsolidationPolicy.WHEN_EMPTY
    assert found.budgets_of("another") == (NodeBudget(3),)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{}", NodePoolDisruption()),
        ("{consolidateAfter: 30m}", NodePoolDisruption(consolidate_after_seconds=1800.0)),
        ("{consolidateAfter: 0s}", NodePoolDisruption(consolidate_after_seconds=0.0)),
        ("{consolidateAfter: Never}", NodePoolDisruption(consolidate_after_seconds=None)),
        ("{consolidationPolicy: WhenEmpty}", NodePoolDisruption(ConsolidationPolicy.WHEN_EMPTY)),
        ("{consolidationPolicy: Balanced, expireAfter: 720h}", NodePoolDisruption(ConsolidationPolicy.BALANCED)),
        ("{budgets: [{}]}", NodePoolDisruption(budgets=(NodeBudget("10%"),))),
        (
            "{budgets: [{nodes: '0', reasons: []}]}",
            NodePoolDisruption(budgets=(NodeBudget(0, reasons=frozenset()),)),
        ),
        (
            "{budgets: [{nodes: '0', schedule: '@daily', duration: 8h}]}",
            NodePoolDisruption(budgets=(NodeBudget(0, schedule=parse_cron("@daily"), duration_seconds=8 * 3600.0),)),
        ),
    ],
)
def test_a_node_pool_is_read_as_karpenter_reads_it(written: str, expected: NodePoolDisruption) -> None:
    assert consolidation("{}", node_pool(written)).disruption == {"web": expected}


def test_a_node_pool_of_before() -> None:
    written = node_pool("{consolidationPolicy: WhenUnderutilized, expireAfter: Never}", "karpenter.sh/v1beta1")
    assert consolidation("{}", written).disruption_of("web") == NodePoolDisruption(
        ConsolidationPolicy.WHEN_UNDERUTILIZED
    )


CASES = {
    "no cluster": (
        OWN + "consolidation: {}",
        "consolidation moves pods of a cluster and needs the section kubernetes; found none",
    ),
    "no such mode": (
        OWN + CLUSTER + "consolidation: {mode: dry}",
        'consolidation.mode: found "dry", expected one of "off", "dry-run", "on"',
    ),
    "a step shorter than an increment": (
        OWN + CLUSTER + "consolidation: {step_deadline: 10m}",
        'consolidation.step_deadline: found "10m", expected more than increment_deadline, "10m"',
    ),
    "no duration": (
        OWN + CLUSTER + "consolidation: {every: often}",
        'consolidation.every: found "often", expected a duration from "1s" to "24h", such as "60s"',
    ),
    "a duration without unit": (
        OWN + CLUSTER + "consolidation: {every: 60}",
        'consolidation.every: found 60, expected a duration from "1s" to "24h"',
    ),
    "planning longer than the pause": (
        OWN + CLUSTER + "consolidation: {every: 5s}",
        'consolidation: budget: found "10s", expected at most every, "5s"',
    ),
    "no such budget": (
        OWN + CLUSTER + "consolidation: {budgets: [{nodes: 120%}]}",
        'consolidation.budgets[0].nodes: found "120%", expected a number of nodes or a percentage',
    ),
    "no budgets": (
        OWN + CLUSTER + "consolidation: {budgets: []}",
        "consolidation.budgets: found [], expected at least 1 of them",
    ),
    "a schedule without end": (
        OWN + CLUSTER + "consolidation: {budgets: [{nodes: 1, schedule: '@daily'}]}",
        "consolidation.budgets[0]: duration is missing; schedule goes with it",
    ),
    "a window at no time": (
        OWN + CLUSTER + "consolidation: {windows: [{cron: 0 25 * * *, duration: 1h}]}",
        'consolidation.windows[0].cron: found "0 25 * * *", expected five fields as in a CronJob (bad hour)',
    ),
    "a misspelt reason": (
        node_pool("{budgets: [{nodes: '1', reasons: [Underutilised]}]}"),
        'provisioners[0].spec.disruption.budgets[0].reasons[0]: found "Underutilised", expected one of "Underutilized"',
    ),
    "a misspelt policy": (
        node_pool("{consolidationPolicy: Always}"),
        'provisioners[0].spec.disruption.consolidationPolicy: found "Always", expected one of "WhenEmpty"',
    ),
    "no such time": (
        node_pool("{consolidateAfter: later}"),
        'provisioners[0].spec.disruption.consolidateAfter: found "later", expected a duration from "0s"',
    ),
    "an unknown field of disruption": (
        node_pool("{consolidateAfterwards: 1m}"),
        "provisioners[0].spec.disruption.consolidateAfterwards: unknown field",
    ),
    "an unknown status": (
        OWN + CLUSTER + "consolidation: {repair: [{condition: Ready, status: no, toleration: 5m}]}",
        'consolidation.repair[0].status: found false, expected one of "True", "False", "Unknown"',
    ),
}


@pytest.mark.parametrize(("text", "problem"), CASES.values(), ids=CASES.keys())
def test_mistakes(text: str, problem: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert problem in found[0]
