"""The section slack: what it becomes, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.config.load import parse_settings
from cagrpc.controllers.slack.model import Carrier, SlackSettings
from cagrpc.errors import InvalidConfiguration
from solver.model import PodSpec, Toleration
from solver.slack.model import Base, Copies, Version

BASE = (
    "provisioners: [{name: web, node_groups: [{id: g, instance_type: m7i.large}]}]\n"
    "kubernetes: {in_cluster: true}\n"
    "drive: plan\n"
)
GIB = 1024**3


def slack(text: str) -> SlackSettings:
    settings = parse_settings(f"{BASE}slack: {text}", "c.yaml", Path())
    assert settings.slack is not None
    return settings.slack


def test_without_the_section_there_is_none() -> None:
    assert parse_settings(BASE, "c.yaml", Path()).slack is None


def test_an_empty_section_mirrors_marked_workloads_only() -> None:
    assert slack("{}") == SlackSettings()
    assert slack("{mirrors_per_namespace: 7}") == SlackSettings(mirrors_per_namespace=7)


def test_every_field() -> None:
    found = slack(
        """
  carrier: pods
  pause_image: registry.example.com/pause:1
  exclude:
    namespaces: [databases]
    selector: {match_labels: {app: db}, match_expressions: [{key: tier, operator: NotIn, values: [cache]}]}
  targets:
  - name: web
    rate: 0.1
    version: "1"
    base: allocatable
    granularity: 3
    provisioner: web
  - name: builds
    namespace: ci
    fixed:
    - {name: large, count: 2, requests: {cpu: 1500m, memory: 1Gi}, tolerations: [{key: ci, operator: Exists}]}
    schedules:
    - {cron: "0 8 * * mon-fri", time_zone: Europe/Berlin, duration: 1h30m, rate: 0.5}
    - {cron: "0 9 * * mon-fri", duration: 8h, rate: 0.3, fixed: [{name: large, count: 9, requests: {cpu: 2}}]}
"""
    )
    assert found.carrier is Carrier.PODS
    assert found.pause_image == "registry.example.com/pause:1"
    assert found.exclude.covers("databases", {})
    assert found.exclude.covers("x", {"app": "db"})
    assert not found.exclude.covers("x", {"app": "db", "tier": "cache"})
    web, builds = found.targets
    assert (web.name, web.rate, web.version, web.base) == ("web", 0.1, Version.EVEN, Base.ALLOCATABLE)
    assert (web.granularity, web.node_selector) == (3, (("karpenter.sh/nodepool", "web"),))
    spec = PodSpec((("cpu", 1500), ("memory", GIB)), tolerations=(Toleration("ci", "Exists"),))
    assert builds.fixed == (Copies("large", spec, 2),)
    assert [each.duration_seconds for each in builds.schedules] == [5400, 8 * 3600]

    night, early, both = (
        1795266000.0,
        1795417200.0 + 1800,
        1795417200.0 + 2.25 * 3600,
    )  # Sat 13:00, Mon 07:30, 09:15 UTC
    assert (builds.at(night).rate, builds.at(night).fixed) == (0.0, builds.fixed)
    assert (builds.at(early).rate, builds.at(early).fixed) == (0.5, builds.fixed)
    assert builds.at(both).rate == 0.3
    assert [(each.name, each.count) for each in builds.at(both).fixed] == [("large", 9)]


CASES = {
    "virtual without the planner": (
        "drive: assist\nslack: {carrier: virtual}",
        "slack.carrier: found virtual with drive: assist, expected buffer or pods, or drive: plan; the cluster-autosc",
    ),
    "no such carrier": (
        "slack: {carrier: ghosts}",
        'slack.carrier: found "ghosts", expected one of "virtual", "buffer"',
    ),
    "nothing asked for": ("slack: {targets: [{name: a}]}", "slack.targets[0]: asks for nothing"),
    "a name twice": (
        "slack: {targets: [{name: a, rate: 1}, {name: a, rate: 1}]}",
        'slack: targets: the name "a" is used twice',
    ),
    "a name that is taken": ("slack: {targets: [{name: mirrors, rate: 1}]}", 'slack: targets: the name "mirrors" is'),
    "a name that is none": ("slack: {targets: [{name: A/b, rate: 1}]}", "slack.targets[0].name: "),
    "a share that is a percentage": ("slack: {targets: [{name: a, rate: 15}]}", "slack.targets[0].rate: found 15"),
    "a negative rate": ("slack: {targets: [{name: a, rate: -0.1}]}", "slack.targets[0].rate: found -0.1"),
    "no end of it": (
        "slack: {targets: [{name: a, rate: 1.0, base: allocatable}]}",
        "slack.targets[0]: rate: found 1, expected less than 1 with base: allocatable",
    ),
    "no end of it, by a schedule": (
        "slack: {targets: [{name: a, base: allocatable, schedules: [{cron: 0 8 * * *, duration: 1h, rate: 2.0}]}]}",
        "slack.targets[0]: rate: found 2, expected less than 1 with base: allocatable",
    ),
    "a namespace's nodes": (
        "slack: {targets: [{name: a, rate: 0.1, base: allocatable, namespace: x}]}",
        "slack.targets[0]: base: a namespace has no allocatable capacity",
    ),
    "no such provisioner": (
        "slack: {targets: [{name: a, rate: 0.1, provisioner: webb}]}",
        'slack.targets[0].provisioner: found "webb", which is not a provisioner with node groups; did you mean "web"?',
    ),
    "no such version": (
        'slack: {targets: [{name: a, rate: 0.1, version: "3"}]}',
        'slack.targets[0].version: found "3", expected one of "1", "2-incomplete", "2"',
    ),
    "granularity 0": (
        "slack: {targets: [{name: a, rate: 0.1, granularity: 0}]}",
        "slack.targets[0].granularity: found 0",
    ),
    "a fixed size without a size": (
        "slack: {targets: [{name: a, fixed: [{name: x, requests: {}}]}]}",
        "slack.targets[0].fixed[0].requests: ",
    ),
    "a fixed size of nothing": (
        "slack: {targets: [{name: a, fixed: [{name: x, requests: {cpu: 0}}]}]}",
        "slack.targets[0].fixed[0]: requests: ask for nothing",
    ),
    "a size in pods": (
        "slack: {targets: [{name: a, fixed: [{name: x, requests: {pods: 3}}]}]}",
        "slack.targets[0].fixed[0]: requests.pods: each placeholder is one pod",
    ),
    "a quantity that is none": (
        "slack: {targets: [{name: a, fixed: [{name: x, requests: {cpu: 1core}}]}]}",
        'slack.targets[0].fixed[0].requests.cpu: "1core" is not a quantity',
    ),
    "one size twice": (
        "slack: {targets: [{name: a, fixed: [{name: x, requests: {cpu: 1}}, {name: x, requests: {cpu: 2}}]}]}",
        'slack.targets[0]: fixed: the name "x" is used twice',
    ),
    "cron of four fields": (
        "slack: {targets: [{name: a, schedules: [{cron: 0 8 * *, duration: 1h, rate: 0.1}]}]}",
        'slack.targets[0].schedules[0].cron: found "0 8 * *", expected five fields',
    ),
    "no such zone": (
        "slack: {targets: [{name: a, schedules: [{cron: 0 8 * * *, time_zone: Europe/Berln, duration: 1h, rate: 1}]}]}",
        'slack.targets[0].schedules[0].time_zone: found "Europe/Berln", expected the name of a time zone',
    ),
    "a duration that is none": (
        "slack: {targets: [{name: a, schedules: [{cron: 0 8 * * *, duration: 8 hours, rate: 0.1}]}]}",
        'slack.targets[0].schedules[0].duration: found "8 hours", expected a duration from "1m" to "168h"',
    ),
    "a window of nothing": (
        "slack: {targets: [{name: a, rate: 0.1, schedules: [{cron: 0 8 * * *, duration: 8h}]}]}",
        "slack.targets[0].schedules[0]: changes nothing",
    ),
    "everybody excluded": (
        "slack: {exclude: {selector: {}}}",
        "slack.exclude.selector: is empty, which would be every",
    ),
    "an operator of nodes": (
        "slack: {exclude: {selector: {match_expressions: [{key: a, operator: Gt, values: ['1']}]}}}",
        'slack.exclude.selector: match_expressions[0].operator: found "Gt", expected one of "In", "NotIn"',
    ),
    "misspelt": ("slack: {carier: pods}", 'slack.carier: unknown field; did you mean "carrier"?'),
}


@pytest.mark.parametrize(("text", "problem"), CASES.values(), ids=CASES.keys())
def test_a_mistake_in_the_section(text: str, problem: str) -> None:
    base = BASE.replace("drive: plan\n", "") if text.startswith("drive:") else BASE
    with pytest.raises(InvalidConfiguration) as caught:
        parse_settings(base + text, "c.yaml", Path())
    (found,) = caught.value.problems
    assert problem in found


def test_without_a_cluster_there_is_nothing_to_hold() -> None:
    with pytest.raises(InvalidConfiguration, match="slack is held in a cluster and needs the section kubernetes"):
        parse_settings(BASE.splitlines()[0] + "\nslack: {}", "c.yaml", Path())


def test_mistakes_are_told_together() -> None:
    text = "slack: {carrier: x, targets: [{name: a, rate: 11}, {name: b, rate: 0.1, granularity: 0}]}"
    with pytest.raises(InvalidConfiguration) as caught:
        parse_settings(BASE + text, "c.yaml", Path())
    assert [each.partition(":")[0] for each in caught.value.problems] == [
        "slack.carrier",
        "slack.targets[0].rate",
        "slack.targets[1].granularity",
    ]


def test_a_time_zone_is_suggested() -> None:
    text = (
        "slack: {targets: [{name: a, schedules: [{cron: 0 8 * * *, time_zone: Europe/Berln, duration: 1h, rate: 1}]}]}"
    )
    with pytest.raises(InvalidConfiguration, match='did you mean "Europe/Berlin"'):
        parse_settings(BASE + text, "c.yaml", Path())


def test_the_example_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "slack.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    settings = parse_settings(BASE + example, "c.yaml", Path()).slack
    assert settings is not None
    assert [each.name for each in settings.targets] == ["general", "builds"]
    assert settings.exclude.covers("databases", {})
