"""`cagrpc config init`: where it writes, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cagrpc.cli.main import main
from tests.support.api_server import ApiServer, api_server
from tests.support.serving import cagrpc, kubeconfig_of


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as api:
        yield api


def test_it_writes_a_file_that_is_valid(api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cagrpc.yaml"
    flags = ["--kubeconfig", str(kubeconfig_of(tmp_path, api.url)), "--context", "it", "--output", str(file)]
    assert main(["config", "init", *flags]) == 0
    assert capsys.readouterr().out == f"{file}: written; `cagrpc serve --config {file}` serves it\n"
    assert f"  kubeconfig: {tmp_path}/kubeconfig  # --kubeconfig" in file.read_text()
    assert "  context: it  # --context" in file.read_text()
    assert main(["config", "check", str(file)]) == 0
    assert "configuration, valid: an expander alone" in capsys.readouterr().out
    assert not [each for each in api.requests if not each.startswith("GET ")]


def test_without_a_file_it_prints_it(api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "init", "--kubeconfig", str(kubeconfig_of(tmp_path, api.url))]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"# A first configuration for {api.url}, by `cagrpc config init`.")
    assert printed.err == ""


def test_a_file_that_is_there_stays(api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cagrpc.yaml"
    file.write_text("precious")
    flags = ["--kubeconfig", str(kubeconfig_of(tmp_path, api.url)), "--output", str(file)]
    assert main(["config", "init", *flags]) == 2
    assert capsys.readouterr().err == f"cagrpc: {file}: exists already; name a new file, or remove it\n"
    assert file.read_text() == "precious"
    assert not api.requests


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        pytest.param([], 2, "give the cluster's --kubeconfig", id="no cluster"),
        pytest.param(["--kubeconfig", "DIRECTORY/none"], 2, "DIRECTORY/none", id="no kubeconfig"),
        pytest.param(["--kubeconfig", "DIRECTORY/kubeconfig", "--context", "no"], 2, "no", id="no such context"),
        pytest.param(["--kubeconfig", "DIRECTORY/kubeconfig"], 1, "cannot be reached", id="nothing answers"),
    ],
)
def test_errors(flags: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig_of(tmp_path, "http://127.0.0.1:1")
    file = tmp_path / "cagrpc.yaml"
    named = [each.replace("DIRECTORY", str(tmp_path)) for each in flags]
    assert main(["config", "init", *named, "--output", str(file)]) == code
    assert said.replace("DIRECTORY", str(tmp_path)) in capsys.readouterr().err
    assert not file.exists()


def test_a_file_that_cannot_be_written(api: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "none" / "cagrpc.yaml"
    done = cagrpc("config", "init", "--kubeconfig", kubeconfig_of(tmp_path, api.url), "--output", file)
    assert done.returncode == 1
    assert done.stderr == f"cagrpc: {file} cannot be written: No such file or directory\n"
