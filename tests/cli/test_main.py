"""The entry point: help, use, exit codes, and `cagrpc config`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cagrpc.cli import certs
from cagrpc.cli.main import main
from cagrpc.errors import InvalidConfiguration, Unavailable
from tests.support.serving import cagrpc

COMMANDS = (
    "serve",
    "plan",
    "explain",
    "replay",
    "certs",
    "catalogue",
    "config",
    "config check",
    "config schema",
    "config init",
)
DATA = Path(__file__).parents[2] / "cagrpc" / "data"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: cagrpc {command}".rstrip())
    if not command:
        assert all(name in out for name in ("serve", "plan", "explain", "replay", "certs", "config"))


@pytest.mark.parametrize("arguments", [[], ["fly"], ["serve", "--port", "1"], ["config"], ["config", "check"]])
def test_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "see `cagrpc" in capsys.readouterr().err


ERRORS: dict[str, tuple[BaseException, int, str]] = {
    "wrong input": (InvalidConfiguration(["a", "b"]), 2, "cagrpc: a\ncagrpc: b\n"),
    "failed": (Unavailable("nobody there"), 1, "cagrpc: nobody there\n"),
    "interrupted": (KeyboardInterrupt(), 130, ""),
}


@pytest.mark.parametrize(("error", "code", "message"), ERRORS.values(), ids=ERRORS)
def test_exit_codes(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(certs, "run", fail)
    assert main(["certs"]) == code
    assert capsys.readouterr().err == message


def test_an_error_of_the_system_that_is_not_of_the_output_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise OSError(28, "No space left on device", "journal")

    monkeypatch.setattr(certs, "run", fail)
    with pytest.raises(OSError, match="journal"):
        main(["certs"])


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "run", lambda _: SimpleNamespace().nothing)
    with pytest.raises(AttributeError):
        main(["certs"])


def test_the_embedded_files_are_sound() -> None:
    done = cagrpc("config", "check", DATA / "default.yaml", *sorted((DATA / "provisioners").glob("*.yaml")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(f"{DATA}/default.yaml: configuration, valid: ")
    assert "requirements[0]" in done.stderr  # a requirement that no instance type meets is a warning


def test_a_bad_file_among_good_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("provisioners: []\nshown_groups: 0\n")
    assert main(["config", "check", str(tmp_path / "bad.yaml"), str(DATA / "default.yaml")]) == 2
    captured = capsys.readouterr()
    assert [f"{tmp_path}/bad.yaml" in line for line in captured.err.splitlines()] == [True, True]
    assert "default.yaml: configuration, valid" in captured.out


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert "provisioners" in json.loads(capsys.readouterr().out)["properties"]
