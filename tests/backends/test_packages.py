"""Backends of installed packages: the example of the guide is built as a wheel, installed, configured, served, and
passes the conformance suite; what cannot be used is named with what is wrong, what is missing with its package."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

import pytest

from cagrpc.backends import registry
from cagrpc.backends.plugin import BackendPlugin, Configured, Inventory
from cagrpc.backends.registry import GROUP, Plugins, with_packages
from cagrpc.forms import Form
from tests.support.serving import Serving, serve, started_process
from tests.support.waiting import AMPLE_SECONDS

ROOT = Path(__file__).parents[2]
RACK = ROOT / "docs" / "guides" / "rack"
PROMISE = ROOT / "docs" / "reference" / "api" / "backends.md"


@dataclass(frozen=True, slots=True)
class Example:
    """The guide's example, written out and installed."""

    source: Path
    site: Path
    """Where it is installed."""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.site), str(ROOT)])}

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=AMPLE_SECONDS,
            check=False,
            env=self.environment,
            cwd=self.source,
        )


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    source, site = tmp_path_factory.mktemp("example") / "rack", tmp_path_factory.mktemp("site")
    shutil.copytree(RACK, source)
    (source / "spool").mkdir()
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    install = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(site), str(source)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in site.glob("*.dist-info")] == ["cagrpc_rack-0.1.0.dist-info"]
    return Example(source, site)


def test_its_configuration_is_checked_and_in_the_schema(example: Example, tmp_path: Path) -> None:
    checked = example.run("-m", "cagrpc.cli", "config", "check", "cagrpc.yaml")
    assert checked.returncode == 0, checked.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((example.source / "cagrpc.yaml").read_text())
    refused = example.run("-m", "cagrpc.cli", "config", "check", wrong)
    assert refused.returncode == 2
    assert "backend.rack.spool: found" in refused.stderr
    schema = json.loads(example.run("-m", "cagrpc.cli", "config", "schema").stdout)
    assert schema["$defs"]["Rack"]["properties"]["fleet"]["default"] == "cagrpc"
    assert "rack" in schema["$defs"]["BackendForm"]["properties"]


def test_it_passes_the_conformance_suite(example: Example) -> None:
    ran = example.run("-m", "pytest", "-rs", "-p", "no:cacheprovider", "tests")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "RackCloud cannot exceed_quota: the rack has no quotas" in ran.stdout
    assert int(re.search(r"(\d+) passed", ran.stdout)[1]) > 20  # type: ignore[index] # it failed otherwise


@pytest.fixture
def controller(example: Example) -> Iterator[None]:
    """Plays the rack's controller: what is wanted runs, what is to go is gone."""
    spool, stopped = example.source / "spool", threading.Event()
    (spool / "controller").touch()

    def work() -> None:
        while not stopped.wait(0.02):
            for request in spool.glob("*.request"):
                gone = request.with_suffix(".delete").exists()
                draft = request.with_suffix(".draft")
                draft.write_text(json.dumps({"id": f"rack://{request.stem}", "running": True, "gone": gone}))
                draft.replace(request.with_suffix(".state"))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stopped.set()
    thread.join()


@pytest.mark.usefixtures("controller")
def test_it_is_served(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", example.environment["PYTHONPATH"])
    # Not forked: what is forked has looked for packages already.
    server: Serving = serve(tmp_path / "state", "--config", example.source / "cagrpc.yaml", start=started_process)
    try:
        with server.provider() as provider:
            assert provider.node_groups() == ["shelf-1", "shelf-2"]
            provider.increase("shelf-1", 3)
            running = provider.wait_for_running("shelf-1", 3)
            assert {each.partition("//")[0] for each in running} == {"rack:"}
            provider.delete("shelf-1", running[0])
            provider.wait_for_running("shelf-1", 2)
            assert provider.target("shelf-1") == 2
    finally:
        assert server.stop() == 0, server.log()


def test_a_package_that_cannot_be_used_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    info = tmp_path / "broken_cloud-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-cloud\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nbroken = broken_cloud:PLUGIN\n")
    (tmp_path / "broken_cloud.py").write_text("import a_client_that_is_missing\n")
    broken = Example(tmp_path, tmp_path)
    told = (
        'backend "broken" of package broken-cloud 1.2 (broken_cloud:PLUGIN): cannot be imported: '
        "ModuleNotFoundError: No module named 'a_client_that_is_missing'; correct or uninstall it"
    )
    default = ROOT / "cagrpc" / "data" / "default.yaml"
    for command in (("config", "check", default), ("config", "schema"), ("serve", "--config", default)):
        ran = broken.run("-m", "cagrpc.cli", *command)
        assert ran.returncode == 2
        assert told in ran.stderr
        assert "Traceback" not in ran.stderr
    helped = broken.run("-m", "cagrpc.cli", "--help")
    assert helped.returncode == 0


# What is a package of this repository, and not installed.

WITHOUT_PACKAGES = """\
import importlib.metadata, sys
importlib.metadata.entry_points = lambda **_: ()
from cagrpc.cli.main import main
code = main(sys.argv[1:])
sys.exit(code or ", ".join({"boto3", "botocore", "cagrpc_ec2"} & sys.modules.keys()) or 0)
"""
INSTALL = "needs the package cagrpc-ec2, which is not installed: pip install cagrpc-ec2"


def without_packages(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_PACKAGES, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=False)


@pytest.mark.parametrize("written", ["{cluster_name: prod, launch_template: {name: workers}}", ""])
def test_a_backend_that_is_not_installed_names_its_package(tmp_path: Path, written: str) -> None:
    configuration = tmp_path / "cagrpc.yaml"
    configuration.write_text(f"provisioners: [{{name: a}}]\nbackend: {{ec2: {written}}}\n")
    checked = without_packages("config", "check", str(configuration))
    assert checked.returncode == 2
    assert checked.stderr == f"cagrpc: {configuration}: backend.ec2: {INSTALL}\n"


def test_all_else_works_without_it() -> None:
    checked = without_packages("config", "check", str(ROOT / "cagrpc" / "data" / "default.yaml"))
    assert checked.returncode == 0, checked.stderr
    schema = json.loads(without_packages("config", "schema").stdout)
    field = schema["$defs"]["BackendForm"]["properties"]["ec2"]
    assert (field["type"], field["description"]) == ("null", "Needs the package `cagrpc-ec2`.")


def test_a_catalogue_whose_package_is_not_installed_names_it() -> None:
    asked = without_packages("catalogue", "aws", "--region", "eu-central-1")
    assert (asked.returncode, asked.stderr) == (2, f"cagrpc: cagrpc catalogue aws {INSTALL}\n")
    misspelt = without_packages("catalogue", "awss")
    assert (misspelt.returncode, misspelt.stderr) == (2, 'cagrpc: found awss, expected aws; did you mean "aws"?\n')


def test_packages_are_named_by_what_they_bring() -> None:
    """What is said where they are missing is true of what they have."""
    names = {each.name for each in registry.BACKENDS} - {each.name for each in registry.OWN}
    assert names >= registry.BACKEND_PACKAGES.keys()
    packages = {each.name: each.dist.name for each in entry_points(group=GROUP) if each.dist is not None}
    for name, package in registry.BACKEND_PACKAGES.items():
        assert packages[name] == package
    for cloud, package in registry.CATALOGUE_PACKAGES.items():
        (source,) = [each for each in registry.BACKENDS if _catalogue(each) == cloud]
        assert packages[source.name] == package
        assert registry.catalogue_source(cloud).name == cloud


def _catalogue(plugin: BackendPlugin) -> str:
    source = getattr(plugin, "catalogue_source", None)
    return source.name if source is not None else ""


# What a package may import.


@pytest.mark.parametrize("package", ["cagrpc_ec2", "cagrpc_rack"])
def test_packages_import_of_cagrpc_what_is_promised_to_them(package: str) -> None:
    promised = set(re.findall(r"^- `([\w.]+)`", PROMISE.read_text(), re.MULTILINE))
    assert "cagrpc.backends.plugin" in promised
    if package == "cagrpc_rack":
        sources = [path.read_text() for path in RACK.rglob("*.py")]
    else:
        sources = [path.read_text() for path in (ROOT / "plugins").glob(f"*/{package}/*.py")]
    assert len(sources) > 1
    imported: set[str] = set()
    for each in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(each, ast.ImportFrom):
            imported.add(each.module or "")
        elif isinstance(each, ast.Import):
            imported.update(alias.name for alias in each.names)
    ours = {name for name in imported if name.startswith(("cagrpc.", "solver"))}  # `from cagrpc import errors` is fine
    assert ours <= promised, f"not promised in {PROMISE}: {sorted(ours - promised)}"


# What can be wrong, one by one.


class _CloudFields(Form):
    cloud: str = "eu"


class _Cloud(BackendPlugin):
    name = "cloud"
    backend_fields: type[Form] = _CloudFields
    kubernetes_fields: type[Form] | None = None

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        raise NotImplementedError


class _Required(Form):
    cloud: str


class _Foreign(Form):
    cloud: str = ""
    region: str = ""


class _Nodes(Form):
    kubeconfig: str = ""


def _plugin(**attributes: Any) -> BackendPlugin:
    plugin: BackendPlugin = type("Plugin", (_Cloud,), attributes)()
    return plugin


class _File(Form):
    file: str = ""


@dataclass(frozen=True, slots=True)
class _Package:
    name: str
    version: str = "1"


@dataclass(frozen=True, slots=True)
class _Point:
    """An entry point of a package that is not installed."""

    found: Any
    name: str = "cloud"
    package: str = "clouds"
    value: str = "clouds:PLUGIN"

    @property
    def dist(self) -> _Package:
        return _Package(self.package)

    def load(self) -> Any:
        return self.found


def _with(*points: _Point) -> Plugins:
    return with_packages(registry.OWN, cast("list[EntryPoint]", points))


def test_a_sound_one_comes_after_our_own() -> None:
    plugin = _Cloud()
    found = _with(_Point(plugin))
    assert found.usable == (*registry.OWN, plugin)
    assert found.problems == ()


@pytest.mark.parametrize("reverse", [False, True])
def test_of_two_with_one_name_the_first_package_is_taken(reverse: bool) -> None:
    one, two = _Point(_Cloud(), package="a"), _Point(_Cloud(), package="b")
    found = _with(*([two, one] if reverse else [one, two]))
    assert found.usable[-1] is one.found
    (told,) = found.problems
    assert told.startswith('backend "cloud" of package b 1 (clouds:PLUGIN): the name "cloud" is taken by package a 1; ')


@pytest.mark.parametrize(
    ("point", "wrong"),
    [
        (_Point(_Cloud), "found the class _Cloud, expected an instance of cagrpc.backends.plugin.BackendPlugin;"),
        (_Point("cloud"), 'found "cloud", expected an instance'),
        (_Point(_plugin(name="other")), 'its name is "other", expected that of the entry point, "cloud";'),
        (_Point(_plugin(backend_fields=_Required)), "backend_fields.cloud: expected a default"),
        (_Point(_plugin(backend_fields=_Foreign)), 'the one field "cloud", found one with cloud, region;'),
        (_Point(_plugin(backend_fields=dict)), "found the class dict;"),
        (_Point(_plugin(kubernetes_fields=_Nodes)), 'names that begin with "cloud_", found one with kubeconfig;'),
        (_Point(_plugin(kubernetes_fields=str)), "expected a cagrpc.forms.Form or None, found the class str;"),
        (_Point(_plugin(name="file", backend_fields=_File), "file"), 'the name "file" is taken by cagrpc;'),
        (_Point(_plugin(name="simulated", backend_fields=_File), "simulated"), 'the one field "simulated", found'),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_problem(point: _Point, wrong: str) -> None:
    found = _with(point)
    assert found.usable == registry.OWN
    (problem,) = found.problems
    assert problem.startswith(f'backend "{point.name}" of package clouds 1 (clouds:PLUGIN): ')
    assert re.search(wrong, problem), problem
