"""`--output yaml` says what `--output json` says, of every command that prints data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.cli.main import main, parser
from cagrpc.output import data_text
from tests.report.clusters import half_empty
from tests.support.serving import SMALL

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "it"}}
SPEC = {"containers": [{"name": "it", "resources": {"requests": {"cpu": "1"}}}]}


def commands_with_output() -> list[str]:
    """Return the commands that have the flag with formats."""
    (commands,) = [each.choices for each in parser()._actions if isinstance(each.choices, dict)]
    assert commands is not None
    return [
        name
        for name, command in commands.items()
        if any("--output" in each.option_strings and each.choices for each in command._actions)
    ]


def test_every_command_that_prints_data_has_both() -> None:
    assert commands_with_output() == ["status", "slack", "plan", "explain", "report", "replay"]
    for name in commands_with_output():
        for flags in (["--output", "yaml"], ["-o", "json"]):
            rest = ["it"] if name == "replay" else []
            assert parser().parse_args([name, *rest, *flags]).output == flags[1]


@pytest.mark.parametrize("command", ["plan", "explain", "report"])
def test_yaml_has_what_json_has(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if command == "report":
        (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": half_empty()}))
        inputs = ["--nodes", str(tmp_path / "cluster.json"), "--budget", "5m"]
    else:
        (tmp_path / "pods.json").write_text(json.dumps({**POD, "spec": SPEC}))
        (tmp_path / "one.json").write_text(json.dumps({"name": "one", "node_groups": [dict(SMALL)]}))
        inputs = ["--pods", str(tmp_path / "pods.json"), "--provisioners", str(tmp_path / "one.json")]

    def said(form: str) -> dict[str, Any]:
        assert main([command, *inputs, "-o", form]) == 0
        text = capsys.readouterr().out
        found: dict[str, Any] = json.loads(text) if form == "json" else yaml.safe_load(text)
        return {key: value for key, value in found.items() if "seconds" not in key and key != "summary"}

    assert said("yaml") == said("json") != {}


def test_values_of_any_type_are_plain() -> None:
    document: dict[str, Any] = {"tuple": (1, 2), "text": "äöü: yes", "empty": {}, "none": None, "again": [[1], [1]]}
    text = data_text(document, "yaml")
    assert yaml.safe_load(text) == json.loads(data_text(document, "json"))
    assert "äöü" in text
    assert "&" not in text
