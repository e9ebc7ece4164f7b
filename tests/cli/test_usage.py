"""How commands are used: examples that can be typed, and what is said of a line that cannot."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from cagrpc.cli.main import COMMANDS, main, parser
from cagrpc.cli.usage import reference
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.client import Client

CONFIG_ACTIONS = ("init", "check", "schema", "import")


@pytest.mark.parametrize("command", [*COMMANDS, *(f"config {action}" for action in CONFIG_ACTIONS)])
def test_every_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    assert f"Examples:\n  {'source <(' * (command == 'completion')}cagrpc {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_command_lines(command: str) -> None:
    for example in import_module(f"cagrpc.cli.{command}").EXAMPLES:
        line = example.removeprefix("source <(").removesuffix(")").removesuffix(" | source")
        program, *arguments = shlex.split(line)
        assert program == "cagrpc"
        assert arguments[0] == command
        parser().parsed(arguments)


def test_examples_of_the_plug_in_are_kubectls(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["status", "--help"], kubectl=True)
    assert "  kubectl cagrpc status --verbose\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plam", "found plam, expected one of serve, status, slack, plan, explain"),
        ("plam", 'did you mean "plan"?; see `cagrpc --help`'),
        ("config chek a.yaml", 'did you mean "check"?; see `cagrpc config --help`'),
        ("plan --kubeconfg a", 'did you mean "--kubeconfig"?; see `cagrpc plan --help`'),
        ("plan --prices a.csv", "found --prices a.csv, which is not known here; see `cagrpc plan --help`"),
        ("plan --output xml", "found xml, expected one of human, json, yaml"),
        ("replay", "the following arguments are required: RECORDING; see `cagrpc replay --help`"),
    ],
)
def test_a_wrong_line_is_told_in_one_line(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    (error,) = capsys.readouterr().err.splitlines()
    assert said in error


def test_the_reference_of_commands_has_every_command_and_action() -> None:
    page = reference(parser())
    for name in (*COMMANDS, *(f"config {action}" for action in CONFIG_ACTIONS)):
        assert f"# cagrpc {name}\n" in page
    assert "usage: cagrpc plan" in page


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {}}]
contexts:
- {name: staging, context: {cluster: c, user: u}}
- {name: production, context: {cluster: c, user: u}}
"""


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ("prodution", 'has no context prodution; did you mean "production"?; it has staging, production'),
        ("", "names no current context; --context names one: it has staging, production"),
    ],
)
def test_the_contexts_of_a_kubeconfig_are_named_where_there_is_no_such(context: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    with pytest.raises(InvalidInput) as raised:
        Client.connect(path, context)
    assert str(raised.value) == f"kubeconfig {path}: {said}"
