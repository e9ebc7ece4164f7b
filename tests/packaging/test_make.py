"""What a newcomer's first `make` says when the machine lacks something, and that CI runs what the README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.controlplane.binaries import REQUIRED_BY
from tests.support.waiting import AMPLE_SECONDS

REPOSITORY = Path(__file__).resolve().parents[2]


def make(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Make in a directory that holds the Makefile and what its targets depend on."""
    for path in (
        *REPOSITORY.glob("requirements*.lock"),
        *(REPOSITORY / n for n in ("Makefile", "pyproject.toml", "setup.py")),
    ):
        shutil.copy(path, directory)
    return subprocess.run(
        ["make", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=AMPLE_SECONDS,
        check=False,
        env=os.environ,
    )


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    done = make(tmp_path, "venv", "PYTHON=")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer; python3 here is: Python 3" in done.stderr


def test_a_missing_venv_module_names_the_package(tmp_path: Path) -> None:
    python = script(tmp_path / "python3", "exit 1")
    done = make(tmp_path, "venv", f"PYTHON={python}")
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


def installations(directory: Path, *arguments: str) -> list[list[str]]:
    """The words of every command that would install something for the documents, which need all before them; the
    machine's Python is called python3."""
    done = make(directory, "--dry-run", "docs", *arguments)
    assert done.returncode == 0, done.stderr
    commands = [line.split(" && ")[0].split() for line in done.stdout.splitlines()]
    return [command for command in commands if "install" in command[:6]]


def what(command: list[str]) -> list[str]:
    """What is installed, and how it is checked."""
    return command[command.index("--no-deps" if "--no-deps" in command else "--require-hashes") :]


def test_uv_comes_by_pip_and_all_else_by_uv_with_hashes(tmp_path: Path) -> None:
    python = script(tmp_path / "python3", 'case "$2" in *pip*) echo True;; esac')
    first, *others = installations(tmp_path, f"PYTHON={python}")
    assert first[:6] == [str(python), "-m", "pip", "--python", ".venv/bin/python", "install"]
    assert what(first) == ["--require-hashes", "-r", "requirements-uv.lock"]
    assert {tuple(command[:3]) for command in others} == {(".venv/bin/uv", "pip", "install")}
    assert [command[-1] for command in others] == [
        "requirements.lock",
        ".",
        "requirements-dev.lock",
        "requirements-ec2-dev.lock",
        "./plugins/ec2",
        "requirements-docs.lock",
    ]


def test_where_the_machine_has_no_pip_the_environment_gets_one(tmp_path: Path) -> None:
    python = script(tmp_path / "python3", 'case "$2" in *pip*) exit 1;; esac')
    done = make(tmp_path, "--dry-run", "venv", f"PYTHON={python}")
    added, by_pip = (
        next(n for n, line in enumerate(done.stdout.splitlines()) if line.startswith(f".venv/bin/python -m {module}"))
        for module in ("ensurepip", "pip install")
    )
    assert added < by_pip


def test_pip_alone_installs_the_same(tmp_path: Path) -> None:
    _, *by_uv = installations(tmp_path)
    by_pip = installations(tmp_path, "INSTALLER=pip")
    assert {tuple(command[:4]) for command in by_pip} == {(".venv/bin/python", "-m", "pip", "install")}
    assert [what(command) for command in by_pip] == [what(command) for command in by_uv]


@pytest.mark.parametrize(
    ("target", "needs_more"),
    [("venv", False), ("test", False), ("native", True), ("test-cluster", True), ("test-all", True)],
)
def test_only_what_says_so_needs_more_than_python(target: str, needs_more: bool) -> None:
    command = ["make", "--dry-run", "--always-make", target, "CARGO=/a/cargo", "CLIPPY="]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=True)
    assert ("--no-deps --no-build-isolation ./native" in done.stdout) == needs_more
    assert ("cargo" in done.stdout) == needs_more
    programs = target in {"test-cluster", "test-all"}
    assert ("tests.support.controlplane.binaries" in done.stdout) == programs


def test_what_is_missing_for_the_control_plane_is_said_before_anything_is_built() -> None:
    """Every program by name, with how one gets it."""
    command = [sys.executable, "-m", "tests.support.controlplane.binaries"]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=AMPLE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    _, *absent = done.stderr.splitlines()
    assert [line.split("`")[1] for line in absent] == ["go", "cargo", "etcd", "setpriv", "chromium", "curl", "jq"]
    assert all("install" in line for line in absent)
    assert not done.stdout


def test_without_cargo_the_native_front_says_what_to_install(tmp_path: Path) -> None:
    done = make(tmp_path, "native", "CARGO=", "RUNTIME=", "NATIVE=native-front")
    assert done.returncode != 0
    assert "is built by cargo, which is not here: install Rust" in done.stderr


def test_another_installer_is_refused(tmp_path: Path) -> None:
    done = make(tmp_path, "venv", "INSTALLER=conda")
    assert done.returncode != 0
    assert 'INSTALLER is uv or pip, and not "conda"' in done.stderr


def test_without_a_target_it_lists_them(tmp_path: Path) -> None:
    done = make(tmp_path)
    assert done.returncode == 0
    for target in (
        "venv",
        "native",
        "run",
        "kernels",
        "test",
        "test-cluster",
        "test-all",
        "test-long",
        "programs",
        "fuzz",
        "lint",
        "bench",
        "sbom",
        "audit",
        "digests",
        "docs",
        "release",
        "clean",
    ):
        assert f"make {target} " in done.stdout


def test_the_audit_leaves_nothing_out(tmp_path: Path) -> None:
    done = make(tmp_path, "--dry-run", "audit")
    assert done.returncode == 0, done.stderr
    (command,) = [line.split() for line in done.stdout.splitlines() if "pip-audit" in line]
    assert "--strict" in command  # else what is not found passes, and without a network nothing is
    assert [command[at + 1] for at, word in enumerate(command) if word == "-r"] == [
        "requirements-uv.lock",
        "requirements.lock",
        "requirements-ec2.lock",
        "requirements-native.lock",
        "requirements-dev.lock",
        "requirements-ec2-dev.lock",
        "requirements-docs.lock",
        "requirements-fuzz.lock",
    ]
    assert "cargo audit --file native/Cargo.lock" in done.stdout


def ci(directory: Path, *programs: str) -> subprocess.CompletedProcess[str]:
    """`.ci/run` on a machine that has these programs, each of which says that it was run and succeeds."""
    for name in programs:
        script(directory / name, f'echo "{name} $@"')
    for name in ("bash", "dirname"):
        (directory / name).symlink_to(shutil.which(name) or name)
    command = [directory / "bash", REPOSITORY / ".ci" / "run"]
    environment = {"PATH": str(directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=False)


def test_ci_runs_what_the_readme_says_and_leaves_no_test_out(tmp_path: Path) -> None:
    done = ci(tmp_path, "make", "etcd", "chromium", "curl", "jq", "python3")
    assert done.returncode == 0, done.stderr
    targets = ("programs", "test", "test-cluster", "docs")
    assert done.stdout.splitlines()[1:] == [f"make {target}" for target in targets]
    assert "apt-get" not in done.stdout
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)
    assert "make test " in (REPOSITORY / "README.md").read_text()


def test_no_test_is_run_twice_and_none_left_out() -> None:
    """What `test`, `test-cluster` and `test-long` select; where programs may be needed none may be missing. Properties
    are run once more each night, with other examples."""
    lines = (REPOSITORY / "Makefile").read_text().splitlines()
    selected = [line.strip().split(" -m ") for line in lines if "$(PYTEST) -m" in line]
    assert selected == [
        ["$(PYTEST)", '"not cluster and not long"'],
        [f"{REQUIRED_BY}=1 $(PYTEST)", '"cluster and not long"'],
        [f"{REQUIRED_BY}=1 $(PYTEST)", "long"],
        ["HYPOTHESIS_PROFILE=nightly $(PYTEST)", '"hypothesis and not cluster and not long"'],
    ]
    assert "- run: make test-long\n" in (REPOSITORY / ".github" / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize("there", ["etcd", "chromium", "jq"])
def test_ci_installs_what_is_missing(tmp_path: Path, there: str) -> None:
    done = ci(tmp_path, "make", "python3", "apt-get", there)
    assert done.returncode == 0, done.stderr
    assert "etcd-server chromium curl jq\n" in done.stdout
