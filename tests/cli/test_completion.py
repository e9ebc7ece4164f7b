"""Shell completion: the scripts are complete, valid for their shell, and made without loading what commands do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cagrpc.cli.main import COMMANDS, main


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
    assert _completions(script, "cagrpc", "plan", "--output", "") == {"human", "json"}
    assert _completions(script, "cagrpc", "config", "") >= {"check", "schema"}
    assert not _completions(script, "cagrpc", "plan", "--pods", "po")  # left to readline: a file
    assert "complete -o default" in script.read_text()


def test_the_script_for_zsh_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("autoload -U +X bashcompinit")
    assert "complete -o default -F _cagrpc cagrpc" in script
    if zsh := shutil.which("zsh"):
        path = tmp_path / "_cagrpc"
        path.write_text(script)
        subprocess.run([zsh, "-n", path], check=True)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "csh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err
