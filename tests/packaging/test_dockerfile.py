"""The Dockerfile's steps, one by one, without Docker: RUN, COPY and ENTRYPOINT are done below a temporary root that
stands for `/`, with the test's own Python as the base image's. The packages of the lock files are lent from the
test's environment, so that `pip install` checks their versions and downloads nothing; and so are the compiled wheel and
kernels.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

from cagrpc.services.grpc import native
from solver.planning import compiling
from solver.planning.warm_up import warm_up
from tests.support.controlplane.binaries import required
from tests.support.waiting import AMPLE_SECONDS

REPOSITORY = Path(__file__).resolve().parents[2]
KNOWN = {"ARG", "FROM", "WORKDIR", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT"}


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str

    @property
    def flags(self) -> dict[str, str]:
        return dict(re.findall(r"--([a-z-]+)=(\S+)", self.rest))

    @property
    def paths(self) -> list[str]:
        return [word for word in shlex.split(self.rest) if not word.startswith("--")]


def instructions() -> list[Instruction]:
    text = re.sub(r"\\\n", " ", (REPOSITORY / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Instruction(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def stages() -> list[list[Instruction]]:
    result: list[list[Instruction]] = []
    for instruction in instructions():
        if instruction.word == "FROM":
            result.append([])
        if result:  # before the first stage stands what all are built on
            result[-1].append(instruction)
    return result


class Image:
    """What the instructions done so far have made, below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_NO"))},
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }

    def inside(self, path: str) -> Path:
        return self.root / path.lstrip("/") if path.startswith("/") else self.directory / path

    def do(self, instruction: Instruction) -> None:
        match instruction.word:
            case "WORKDIR":
                self.directory = self.inside(instruction.rest)
                self.directory.mkdir(parents=True, exist_ok=True)
            case "RUN":
                self.run(instruction.rest)
            case "COPY":
                self.copy(instruction)
            case "ENV":
                for name, value in re.findall(r"(\w+)=(\S+)", self.rooted(instruction.rest)):
                    self.environment[name] = value.replace("$PATH", self.environment["PATH"])

    def rooted(self, command: str) -> str:
        return re.sub(r"(?<![\w./])/(?=(opt|src|var/lib/cagrpc)\b)", f"{self.root}/", command)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.rooted(command),
            shell=True,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=AMPLE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if "-m venv" in command:
            self.lend_packages(Path(shlex.split(self.rooted(command))[-1]))
        return done

    @staticmethod
    def lend_packages(environment: Path) -> None:
        (site,) = environment.glob("lib/python3*/site-packages")
        (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def copy(self, instruction: Instruction) -> None:
        *sources, target_name = instruction.paths
        target = self.inside(target_name)
        if "from" in instruction.flags:  # both stages share the root, as an environment cannot be moved
            assert sources == [target_name]
            assert target.exists()
            return
        for name in sources:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "gen"), dirs_exist_ok=True)
            else:
                shutil.copy(source, target)


def lend_wheel(directory: Path) -> None:
    """Put what is installed of cagrpc-native into a wheel again, as a later version: the same one is lent already."""
    installed = distribution("cagrpc-native")
    assert installed.files is not None
    before, after = installed.version, f"{installed.version}.post1"
    directory.mkdir(parents=True)
    with zipfile.ZipFile(directory / f"cagrpc_native-{after}-cp311-abi3-linux_x86_64.whl", "w") as wheel:
        for file in installed.files:
            if file.suffix == ".so":
                wheel.write(file.locate(), file)
            elif file.name in {"METADATA", "WHEEL", "RECORD"}:
                text = file.read_text().replace(f"\nVersion: {before}\n", f"\nVersion: {after}\n")
                wheel.writestr(str(file).replace(f"-{before}.dist", f"-{after}.dist"), text)


def lend_kernels(image: Image) -> None:
    """Put the kernels that are compiled for this test's environment beside the image's source, which is the same."""
    warm_up()
    kept = compiling.kept()
    assert kept is not None
    (package,) = image.root.glob("opt/cagrpc/lib/python3*/site-packages/solver")
    shutil.copytree(kept, package / "__pycache__" / kept.name)


@pytest.mark.cluster  # of the native front
def test_the_steps_give_a_working_command(tmp_path: Path) -> None:
    image = Image(tmp_path)
    if native.load() is None:
        (pytest.fail if required() else pytest.skip)(
            "the wheel of cagrpc-native is not built here: `make native`, which takes cargo"
        )
    for instruction in instructions():
        if "apt-get install" in instruction.rest:
            continue  # the compilers
        if "pip wheel" in instruction.rest:  # it takes a minute, and `make native` has done it by the same means
            lend_wheel(image.inside(instruction.flags["wheel-dir"]))
            continue
        if "solver.planning.warm_up" in instruction.rest:  # the same kernels are compiled here, wherever that is
            lend_kernels(image)
            continue
        assert instruction.word in KNOWN, "teach this test the new instruction"
        image.do(instruction)
    entrypoint = json.loads(instructions()[-1].rest)
    command = shlex.join(entrypoint)
    assert "usage: cagrpc serve" in image.run(f"{command} --help").stdout
    where = "import cagrpc, cagrpc.api.gen.expander_pb2 as m; print(m.__file__)"
    assert str(tmp_path / "opt") in image.run(f"/opt/cagrpc/bin/python -c {shlex.quote(where)}").stdout
    assert "three-deployments" in image.run("cagrpc replay /nonexistent 2>&1 || true").stdout  # the data came along
    kept = "from solver.planning.compiling import kept; print(kept())"
    assert str(tmp_path / "opt") in image.run(f"/opt/cagrpc/bin/python -c {shlex.quote(kept)}").stdout  # no plan waits
    packages = {path.name for path in tmp_path.glob("opt/cagrpc/lib/python3*/site-packages/*")}
    assert {"cagrpc", "cagrpc_ec2", "cagrpc_native.abi3.so"} <= packages
    assert not packages & {"pip", "setuptools"}  # nothing is installed into an image that runs
    assert os.access(sysconfig.get_path("purelib") + "/setuptools", os.R_OK)  # what was lent is still there


def test_the_final_stage_takes_only_the_environment_and_an_empty_state_directory() -> None:
    copies = [instruction for instruction in stages()[-1] if instruction.word == "COPY"]
    assert [copy.paths[0] for copy in copies] == ["/opt/cagrpc", "/var/lib/cagrpc"]
    assert {copy.flags["from"] for copy in copies} == {"builder"}  # and so no compiler
    assert not [instruction for instruction in stages()[-1] if instruction.word == "RUN"]


def test_tests_of_packages_and_an_unused_client_are_left_out(tmp_path: Path) -> None:
    """By the step of the Dockerfile, in an environment that has some."""
    (step,) = [each for each in stages()[1] if each.word == "RUN" and each.rest.startswith("find ")]
    image = Image(tmp_path)
    site = tmp_path / "opt/cagrpc/lib/python3.11/site-packages"
    for name in (
        "pandas/tests/frame",
        "numba/cuda/tests",
        "kubernetes/aio/client",
        "kubernetes/client",
        "cagrpc/testing",
    ):
        (site / name).mkdir(parents=True)
    image.run(step.rest.split("&&")[0])
    left = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_dir()}
    assert left == {"pandas", "numba", "numba/cuda", "kubernetes", "kubernetes/client", "cagrpc", "cagrpc/testing"}


def test_it_does_not_run_as_root() -> None:
    (user,) = [instruction.rest for instruction in stages()[-1] if instruction.word == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize(
    "name",
    sorted(
        {p for i in (*stages()[0], *stages()[1]) if i.word == "COPY" and "from" not in i.flags for p in i.paths[:-1]}
    ),
)
def test_what_is_copied_exists_and_is_not_ignored(name: str) -> None:
    assert (REPOSITORY / name).exists()
    assert f"!{name}" in (REPOSITORY / ".dockerignore").read_text().splitlines()
