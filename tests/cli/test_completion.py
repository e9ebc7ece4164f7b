"""Shell completion: the scripts are complete, valid for their shell, and made without loading what commands do."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from cagrpc.cli import completion
from cagrpc.cli.main import COMMANDS, main
from tests.support.controlplane.kubectl import SCRIPTS
from tests.support.waiting import AMPLE_SECONDS


def _completions(script: Path, *words: str) -> set[str]:
    """What bash proposes for the last of the words."""
    ask = f"""
        source {script}
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
        $(complete -p cagrpc | sed 's/.*-F \\([^ ]*\\).*/\\1/') cagrpc '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ran = subprocess.run(["bash", "--norc", "-c", ask], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


@pytest.fixture(name="script")
def _script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "cagrpc.bash"
    path.write_text(capsys.readouterr().out)
    return path


def test_bash_proposes_commands_flags_choices_and_files(script: Path) -> None:
    assert _completions(script, "cagrpc", "") >= set(COMMANDS)
    assert _completions(script, "cagrpc", "ex") == {"explain"}
    assert _completions(script, "cagrpc", "plan", "--pro") == {"--provisioners"}
    assert _completions(script, "cagrpc", "plan", "--output", "") == {"human", "json", "yaml"}
    assert _completions(script, "cagrpc", "plan", "--budget", "1s", "-o", "") == {"human", "json", "yaml"}
    assert _completions(script, "cagrpc", "status", "--w") == {"--watch"}
    assert _completions(script, "cagrpc", "config", "") >= {"check", "schema"}
    assert not _completions(script, "cagrpc", "plan", "--pods", "po")  # left to readline: a file
    assert "complete -o default" in script.read_text()


def test_a_tab_completes_in_bash(script: Path, tmp_path: Path) -> None:
    """On a terminal, with the keys that a person presses."""
    (tmp_path / "pods-of-mine.yaml").touch()
    controller, terminal = pty.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "TERM": "dumb",
        "PS1": "$ ",
        "HOME": str(tmp_path),
        "INPUTRC": "/dev/null",
    }
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        os.write(controller, f'source {script}; cagrpc() {{ echo "<$*>"; }}; echo begun\n'.encode())
        _read_until(controller, "\nbegun")
        os.write(controller, b"cagrpc pl\t--pro\tnone --out\tya\t --pods pods-of\t\n")
        told = _read_until(controller, "\n<")
        assert "<plan --provisioners none --output yaml --pods pods-of-mine.yaml>" in told
    finally:
        bash.kill()
        bash.wait()
        os.close(controller)


def _read_until(terminal: int, expected: str) -> str:
    """Return what the terminal shows, to the end of the line that has this."""
    told = ""
    while expected not in told or not told.partition(expected)[2].endswith(("\n", "$ ")):
        ready, _, _ = select.select([terminal], [], [], AMPLE_SECONDS)
        assert ready, told
        told += os.read(terminal, 4096).decode().replace("\r", "")
    return told


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_for_other_shells_is_valid(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checked by the shell itself where it is installed."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert ("autoload -U +X bashcompinit" if shell == "zsh" else "complete -c cagrpc -a") in script
    assert "human json yaml" in script
    if program := shutil.which(shell):
        path = tmp_path / "_cagrpc"
        path.write_text(script)
        subprocess.run([program, "-n", path], check=True)


def test_fish_proposes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    case = lines.index('        case " plan* --output"')
    assert lines[case + 1].strip() == 'string split " " -- "human json yaml"'
    assert case < lines.index('        case " plan*"') < lines.index('        case "*"')


def test_kubectl_is_told_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def proposed(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-cagrpc", *words])
        assert completion.for_kubectl() == 0
        return capsys.readouterr().out.splitlines()

    assert proposed("st") == ["status", ":0"]
    assert proposed("status", "--k") == ["--kubeconfig", ":0"]
    assert proposed("status", "--output", "") == ["human", "json", "yaml", ":0"]
    assert proposed("plan", "--pods", "") == [":0"]
    assert set(proposed("")) >= set(COMMANDS)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "csh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


def test_kubectl_finds_what_is_installed() -> None:
    """The names are kubectl's: kubectl-NAME and kubectl_complete-NAME. Tests have the same programs."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    scripts = project["project"]["scripts"]
    assert scripts.keys() == SCRIPTS.keys() == {"cagrpc", "kubectl-cagrpc", "kubectl_complete-cagrpc"}
    for name, place in scripts.items():
        module, function = place.split(":")
        assert SCRIPTS[name] == f"from {module} import {function} as run"
        assert callable(getattr(import_module(module), function))
