"""The lock files: complete, hashed, and free of anything of the machine that made them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLER = "requirements-uv.lock"
NATIVE = "requirements-native.lock"
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-docs.lock", "requirements-fuzz.lock")


def pins(name: str) -> dict[str, str]:
    """Project -> pinned version. A pin without a hash does not match and so is missing."""
    text = (REPOSITORY / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", [INSTALLER, NATIVE, *LOCKS])
def test_no_index_url_or_path(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    assert not re.findall(r"^-|--(?!hash)\w|https?:|file:/| /\w", text, re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_everything_is_pinned_with_a_hash(name: str) -> None:
    lines = (REPOSITORY / name).read_text().splitlines()
    requirements = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(requirements) == len(pins(name)) > 20


def test_what_installs_is_pinned_alone_and_is_no_part_of_the_rest() -> None:
    (wanted,) = [
        Requirement(line)
        for line in (REPOSITORY / "requirements-uv.in").read_text().splitlines()
        if not line.startswith("#")
    ]
    (pinned,) = pins(INSTALLER).items()
    assert pinned[0] == wanted.name == "uv"
    assert wanted.specifier.contains(pinned[1])
    assert not any("uv" in pins(name) for name in LOCKS)


def test_what_builds_the_native_front_is_pinned_and_fits_the_rest() -> None:
    document = tomllib.loads((REPOSITORY / "native" / "pyproject.toml").read_text())
    pinned, others = pins(NATIVE), pins("requirements.lock")
    for requirement in map(Requirement, document["build-system"]["requires"]):
        assert requirement.specifier.contains(pinned[requirement.name]), f"{NATIVE} lacks {requirement}; make lock"
    assert all(others.get(name, version) == version for name, version in pinned.items())


def test_they_satisfy_pyproject() -> None:
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project = document["project"]
    needed = {
        "requirements.lock": [
            *project["dependencies"],
            *project["optional-dependencies"]["ec2"],
            *project["optional-dependencies"]["tracing"],
            *document["build-system"]["requires"],
        ],
        "requirements-dev.lock": [*project["dependencies"], *project["optional-dependencies"]["dev"]],
        "requirements-docs.lock": [*project["dependencies"], *project["optional-dependencies"]["docs"]],
        "requirements-fuzz.lock": [*project["dependencies"], *project["optional-dependencies"]["fuzz"]],
    }
    for name, requirements in needed.items():
        pinned = pins(name)
        for requirement in map(Requirement, requirements):
            version = pinned.get(normal(requirement.name))
            assert version is not None, f"{name} lacks {requirement}; make lock"
            assert requirement.specifier.contains(version), f"{name} pins {version}, not {requirement}; make lock"


def test_the_other_locks_have_the_same_versions() -> None:
    runtime, *others = (pins(name) for name in LOCKS)
    for other in others:
        assert {name: other.get(name) for name in runtime} == runtime
