"""The alerts that the chart installs: Prometheus takes them, each fires when it should and else not, each has a
paragraph in the runbook, and they speak of metrics that there are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.serving import Serving
from tests.support.waiting import AMPLE_SECONDS

REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "deploy" / "chart" / "files" / "rules.yaml"
RUNBOOK = REPOSITORY / "docs" / "guides" / "runbook.md"
# As text: `0x60` is not a number here.
CASES: Mapping[str, Mapping[str, Any]] = yaml.load((Path(__file__).parent / "cases.yaml").read_text(), yaml.BaseLoader)
SEVERITIES = {"critical", "warning", "info"}
END_MINUTES = 60


def _alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def _promtool(prometheus: Path, *arguments: object, given: str = "") -> str:
    command = [str(each) for each in (prometheus / "promtool", *arguments)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=AMPLE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_alert_has_cases_a_severity_and_a_paragraph_in_the_runbook() -> None:
    alerts = _alerts()
    assert alerts.keys() == CASES.keys()
    sections = re.split(r"^### ", RUNBOOK.read_text(), flags=re.MULTILINE)
    runbook = {text.split("\n", 1)[0]: text for text in sections[1:]}
    assert runbook.keys() == alerts.keys()
    for name, alert in alerts.items():
        severity = alert["labels"]["severity"]
        assert severity in SEVERITIES
        assert {*alert["annotations"]} == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"] == f"docs/guides/runbook.md#{name.lower()}"
        for part in (f"{severity.capitalize()}.", "*Means*: ", "*Look at*: ", "*Do*: "):
            assert part in runbook[name], (name, part)


def test_promtool_finds_nothing_to_say_about_the_metrics_of_a_server(prometheus: Path, demonstration: Serving) -> None:
    """That of a server in a cluster, at work, is looked at in tests/controlplane/test_dashboard.py."""
    with demonstration.provider() as provider:
        provider.node_groups()
    text = demonstration.get("/metrics")
    assert 'cagrpc_rpc_duration_seconds_bucket{code="OK",le="5.0",method="NodeGroups"}' in text
    assert _promtool(prometheus, "check", "metrics", given=text) == ""
    odd = text + "# TYPE cagrpc_calls counter\ncagrpc_calls 1\n"
    with pytest.raises(AssertionError, match="cagrpc_calls"):
        _promtool(prometheus, "check", "metrics", given=odd)


def test_alerts_speak_of_metrics_that_there_are() -> None:
    page = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    for name, alert in _alerts().items():
        used = set(re.findall(r"\b(?:cagrpc|process)_\w+", alert["expr"]))
        assert used, name
        assert {re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", each) for each in used} <= known, name


def _tests() -> Iterator[dict[str, Any]]:
    for name, case in CASES.items():
        for outcome, count in (("fires", 1), ("quiet", 0)):
            yield {
                "name": f"{name} {outcome}",
                "interval": "1m",
                "input_series": [{"series": series, "values": values} for series, values in case[outcome].items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                        "eval_time": f"{case.get('at', END_MINUTES)}m",
                        "exp_samples": [{"labels": "{}", "value": count}],
                    }
                ],
            }


def test_each_fires_when_it_should_and_else_not(prometheus: Path, tmp_path: Path) -> None:
    _promtool(prometheus, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [*_tests()]}))
    _promtool(prometheus, "test", "rules", path)


def test_promtool_tells_what_does_not_fire(prometheus: Path, tmp_path: Path) -> None:
    """The test above can fail."""
    wrong = next(_tests())
    wrong["input_series"] = [{"series": 'cagrpc_build_info{version="1"}', "values": "1x60"}]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [wrong]}))
    with pytest.raises(AssertionError, match="CagrpcAbsent"):
        _promtool(prometheus, "test", "rules", path)
