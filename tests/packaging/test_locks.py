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
PLUGIN, PLUGIN_DEVELOPMENT = "requirements-ec2.lock", "requirements-ec2-dev.lock"
PLUGINS_ALONE = {"boto3", "botocore", "moto", "flask", "flask-cors", "werkzeug"}


def pins(name: str) -> dict[str, str]:
    """Project -> pinned version. A pin without a hash does not match and so is missing."""
    text = (REPOSITORY / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))


def requirements(name: str) -> list[Requirement]:
    """Return what a file asks for."""
    lines = (line.partition("#")[0].strip() for line in (REPOSITORY / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", [INSTALLER, NATIVE, PLUGIN, PLUGIN_DEVELOPMENT, *LOCKS])
def test_no_index_url_or_path(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    assert not re.findall(r"^-|--(?!hash)\w|https?:|file:/| /\w", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "least"), [*((name, 20) for name in LOCKS), (PLUGIN, 5), (PLUGIN_DEVELOPMENT, 20)])
def test_everything_is_pinned_with_a_hash(name: str, least: int) -> None:
    lines = (REPOSITORY / name).read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(pinned) == len(pins(name)) > least


def test_what_installs_is_pinned_alone_and_is_no_part_of_the_rest() -> None:
    (wanted,) = requirements("requirements-uv.in")
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


def test_what_a_plug_in_needs_is_its_own_and_fits_the_rest() -> None:
    """The image is installed from the first lock file of each, and development from the others."""
    needed, for_tests = requirements("plugins/ec2/requirements.in"), requirements("plugins/ec2/requirements-dev.in")
    for name, wanted in ((PLUGIN, needed), (PLUGIN_DEVELOPMENT, [*needed, *for_tests])):
        pinned = pins(name)
        for requirement in wanted:
            assert requirement.specifier.contains(pinned[requirement.name]), f"{name} lacks {requirement}; make lock"
    runtime, development = pins("requirements.lock"), pins("requirements-dev.lock")
    plugin, with_tests = pins(PLUGIN), pins(PLUGIN_DEVELOPMENT)
    assert all(runtime.get(name, version) == version for name, version in plugin.items())
    assert all(development.get(name, version) == version for name, version in with_tests.items())
    assert {name: with_tests.get(name) for name in plugin} == plugin
    assert with_tests.keys() >= PLUGINS_ALONE
    for name in LOCKS:
        assert not PLUGINS_ALONE & pins(name).keys(), name


def test_they_satisfy_pyproject() -> None:
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project = document["project"]
    needed = {
        "requirements.lock": [
            *project["dependencies"],
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
