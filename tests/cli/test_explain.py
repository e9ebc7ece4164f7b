"""`cagrpc explain` of a plan: the JSON is an interface, tables say the same, and the document shows what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cagrpc.cli.main import main
from solver.explanation.choices import difference_words
from solver.explanation.model import Difference
from solver.model import NodeGroupIncrease

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "explanations.md"
POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: pool}
spec:
  limits: {nodes: 2}
  template:
    spec:
      taints: [{key: team, value: vision, effect: NoSchedule}]
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m7i.large]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: small}
spec:
  limits: {nodes: 2}
  template:
    spec:
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m7i.large]}
"""


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """Three of five pods have no place: one group is tainted, the other limited."""
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,count\nweb,1500,1024,0,5\n")
    (tmp_path / "pools.yaml").write_text(POOL)
    return ["--pods", str(tmp_path / "pods.csv"), "--provisioners", str(tmp_path / "pools.yaml")]


def test_the_json(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *inputs, "--output", "json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(said) == [
        "classes", "unserved", "unserved_left_out", "chosen", "chosen_left_out", "limited", "price_of_priority",
        "summary",
    ]  # fmt: skip
    (why,) = said["unserved"]
    assert list(why) == [
        "name", "gang", "classes", "pods", "unserved", "fit", "servable", "proven", "in_place", "core", "ways",
        "would_serve",
    ]  # fmt: skip
    assert (why["pods"], why["unserved"], why["fit"], why["proven"]) == (5, 3, 2, True)
    assert all(list(each) == ["kind", "subject", "key", "amount", "class", "text"] for each in why["core"])
    assert {"toleration", "limit"} <= {each["kind"] for each in why["core"]}
    assert len(why["would_serve"]) == len(why["ways"])
    for way in why["ways"]:
        assert list(way) == ["proven", "changes"]
        assert all(list(c) == ["kind", "subject", "key", "from", "to", "class", "text"] for c in way["changes"])
    raised = next(c for w in why["ways"] for c in w["changes"] if c["kind"] == "limit" and "small" in c["subject"])
    assert (raised["key"], raised["from"], raised["to"], raised["class"]) == ("nodes", 2, 5, None)
    asked = next(c for w in why["ways"] for c in w["changes"] if c["kind"] == "request")
    assert (asked["class"], asked["from"]) == (why["classes"][0], 1500)
    (chosen,) = said["chosen"]
    assert list(chosen) == ["node_group", "nodes", "weight", "cost_per_hour", "without", "others"]
    assert chosen["without"]["unserved"] == 2
    assert list(chosen["without"]) == [
        "unserved", "placeholders", "cost_per_hour", "tiers", "increments", "proven",
    ]  # fmt: skip
    (limited,) = said["limited"]
    assert list(limited) == ["constraints", "without", "lower_bound_without", "text"]
    (constraint,) = limited["constraints"]
    assert constraint["text"] == "limit provisioner small allows 2 nodes"
    assert limited["without"]["unserved"] == -3


def test_the_tables(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *inputs]) == 0
    out = " ".join(re.sub("[│┃]", " ", capsys.readouterr().out).split())
    assert "3 of 5 pods like default/web: " in out
    assert "What is not served" in out
    assert "Why these node groups" in out
    assert "taint team=vision:NoSchedule" in out
    assert "limited: limit provisioner small allows 2 nodes; without it, 3 more pods are served (+3 small/" in out


def test_a_plan_says_what_limits_cost(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *inputs]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "limited: limit provisioner small allows 2 nodes; without it, 3 more pods are served (+3 small/" in out
    assert main(["plan", *inputs, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["limited"]["without"]["unserved"] == -3


def test_the_document_shows_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = DOCUMENT.read_text()
    for name, content in re.findall(r"^```\w+ (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```console\n\$ cagrpc (.*?)^```", text, re.DOTALL | re.MULTILINE)
    command, *expected = block.splitlines()
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert len(expected) > 5
    assert [line for line in expected if line not in out] == []


def test_a_difference_in_words() -> None:
    def words(*, unserved: int = 0, placeholders: int = 0, tiers: tuple[tuple[int, float], ...] = ()) -> str:
        total = sum(cost for _, cost in tiers)
        return difference_words(
            Difference(unserved, placeholders, tiers, total, (NodeGroupIncrease("g", -2),), proven=True)
        )

    assert words(unserved=2) == "2 fewer pods are served (-2 g)"
    assert words(placeholders=-1) == "1 more placeholder is served (-2 g)"
    assert words() == "it would cost the same (-2 g)"
    assert words(tiers=((0, 0.0), (10, 1.5))) == "it would cost $1.50/h more (-2 g)"
    assert words(tiers=((0, 2.0), (10, -1.5))) == (
        "it would cost $0.50/h more, with $2.00/h more of weight 0, which decides (-2 g)"
    )
    unproven = Difference(0, 0, ((0, 1.0),), 1.0, (NodeGroupIncrease("g", 1),), proven=False)
    assert difference_words(unproven) == "it would cost $1.00/h more (+1 g; as far as was found in the time)"


def test_wrong_input_is_told_in_one_line(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *inputs, "--budget", "soon"]) == 2
    assert '--budget: found "soon"' in capsys.readouterr().err
    assert main(["explain", *inputs[:2]]) == 2
    assert "give --last, or provisioningrequest NAME, or --pods and --provisioners" in capsys.readouterr().err
