"""What starting a command loads: help needs next to nothing, a check of files neither solver nor cluster, a server
neither before it serves, where it has no cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cagrpc.cli.main import COMMANDS

DEFAULT = Path(__file__).parents[2] / "cagrpc" / "data" / "default.yaml"
PLANS = ("ortools", "numba", "llvmlite", "pandas", "solver.planning.solve", "celpy", "lark")
TALKS = ("grpc", "google.protobuf", "kubernetes", "urllib3", "prometheus_client", "cryptography", "sqlite3")
READS = ("pydantic", "yaml", "rich", "numpy")
MOST_MODULES_OF_A_SERVER = 1_100
"""Some 980 today. Each takes about a millisecond, and together all of the 2 s that `cagrpc serve` has to be ready."""
AS_IT_BEGINS_TO_SERVE = """\
import gc
from cagrpc.server.server import Server

def start(self):
    self.stop()
    assert gc.isenabled()
    sys.exit()

Server.start = start
"""


HELP = """\
import sys
from contextlib import suppress
from cagrpc.cli.main import COMMANDS, main

for command in ([], *([name] for name in COMMANDS)):
    with suppress(SystemExit):
        main([*command, "--help"])
    print("\\0", *command, "\\0", *sys.modules, "\\0")
"""


def _loaded(*arguments: str, before: str = "") -> set[str]:
    """Modules after a command, by a process of its own, which runs the code `before`."""
    code = (
        f"import sys\n{before}\n"
        "from cagrpc.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print('\\0', *sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(ran.stdout.rpartition("\0")[2].split())


def test_help_loads_only_the_command_line() -> None:
    """One process shows all of it, so that what one command loads is told of the first that does."""
    shown = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    _, *parts = shown.stdout.split("\0")
    of = [(command.strip(), set(loaded.split())) for command, loaded in zip(parts[::3], parts[1::3], strict=True)]
    assert [command for command, _ in of] == ["", *COMMANDS]
    for command, loaded in of:
        assert "cagrpc.cli.main" in loaded
        assert not loaded & {*PLANS, *TALKS, *READS}, command


def test_completion_loads_only_the_command_line() -> None:
    assert not _loaded("completion", "bash") & {*PLANS, *TALKS, *READS}


@pytest.mark.parametrize("arguments", [("config", "check", str(DEFAULT)), ("config", "schema")], ids=" ".join)
def test_a_configuration_is_checked_without_a_solver_or_a_cluster(arguments: tuple[str, ...]) -> None:
    loaded = _loaded(*arguments)
    assert "cagrpc.config.load" in loaded
    assert not loaded & {*PLANS, *TALKS, "rich"}


def test_a_plan_of_files_loads_no_server_and_no_schema_of_its_configuration(tmp_path: Path) -> None:
    pods = tmp_path / "pods.csv"
    pods.write_text("name,cpu_milli,memory_mib,num_gpu\na,1000,1024,0\n")
    provisioners = tmp_path / "provisioners.yaml"
    provisioners.write_text("name: any\n")
    loaded = _loaded("plan", "--pods", str(pods), "--provisioners", str(provisioners), "--output", "json")
    assert "solver.planning.solve" in loaded
    server = {"grpc", "kubernetes", "urllib3", "prometheus_client", "cryptography", "sqlite3"}
    assert not loaded & {*server, "cagrpc.config.load", "cagrpc.config.schema.document", "cagrpc.backends.registry"}


def test_a_server_without_a_cluster_serves_before_it_loads_a_planner_or_a_client_of_kubernetes(tmp_path: Path) -> None:
    loaded = _loaded("serve", "--ephemeral-ports", "--state-dir", str(tmp_path), before=AS_IT_BEGINS_TO_SERVE)
    assert (tmp_path / "journal.sqlite").exists()
    kubernetes = ("kubernetes", "urllib3", "cagrpc.kube", "cagrpc.cluster.view", "cagrpc.server.controllers")
    assert not loaded & {*PLANS, *kubernetes, "jinja2", "botocore", "opentelemetry", "pytest"}
    assert len(loaded) < MOST_MODULES_OF_A_SERVER
