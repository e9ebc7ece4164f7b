"""Every command of the README and the documents is run as it stands there, or is in the list of those that are not.
Pages that need no cluster are played here, the others in tests/controlplane/test_documents.py."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from cagrpc.cli.main import COMMANDS, parser
from cagrpc.config.load import default_text
from cagrpc.inspection.client import ServerAddress, get_json
from tests.documents.lists import (
    NOT_RUN,
    PLAYED_ELSEWHERE,
    WITH_CONTROL_PLANE,
    WITHOUT_CLUSTER,
    not_run,
    pages,
    plain,
)
from tests.support.commands import ROOT, PageReader, blocks, commands, play, words
from tests.support.controlplane.processes import free_port, wait_for


def test_no_command_is_forgotten() -> None:
    played = {*WITHOUT_CLUSTER, *WITH_CONTROL_PLANE, *PLAYED_ELSEWHERE}
    forgotten = [
        f"{page}: {command}"
        for page, written in pages().items()
        for command in written
        if page not in played and plain(command) not in not_run(page)
    ]
    said = "commands that no test runs; play their page, or say why not, in tests/documents/lists.py"
    assert not forgotten, f"{said}: {forgotten}"


def test_the_lists_name_nothing_that_is_gone() -> None:
    written = {page: {plain(each) for each in found} for page, found in pages().items()}
    gone = [
        f"{page}: {command}"
        for of_reason in NOT_RUN.values()
        for page, listed in of_reason.items()
        for command in listed
        if command not in written.get(page, ())
    ]
    assert not gone
    for page in (*WITHOUT_CLUSTER, *WITH_CONTROL_PLANE, *PLAYED_ELSEWHERE):
        assert written.get(page, set()) - not_run(page), f"{page} has nothing to be played"
    for page, test in PLAYED_ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize("page", [page for page in pages() if not_run(page)])
def test_what_is_not_run_would_be_understood(page: str) -> None:
    """Commands and flags of cagrpc, targets of make, modules of Python: they are there."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in pages()[page]:
        if plain(command) not in not_run(page):
            continue
        said = words(command)
        ours = [index for index, (one, two) in enumerate(pairwise(said)) if one == "cagrpc" and two in COMMANDS]
        if ours:
            _understood(said[ours[0] + 1 :], command)
        elif said[0] == "make":
            assert said[1] in targets, command
        elif said[:2] == [".venv/bin/python", "-m"]:
            assert find_spec(said[2]), command


def _understood(arguments: list[str], command: str) -> None:
    refused = io.StringIO()
    with contextlib.redirect_stderr(refused):
        try:
            parser().parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{command}: {refused.getvalue()}")


def test_cagrpc_on_every_page_is_understood() -> None:
    """Those that are run as well: a page that is left out by a machine without a control plane."""
    for written in pages().values():
        for command in written:
            said = words(command)
            if said[0] == "cagrpc":
                _understood(said[1:], command)
            elif said[:2] == ["kubectl", "cagrpc"]:
                _understood(said[2:], command)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[PageReader]:
    reader = PageReader(tmp_path)
    yield reader
    reader.kill()


def test_the_first_five_minutes(reader: PageReader) -> None:
    page = "docs/guides/five-minutes.md"
    for name, text in zip(("pods.yaml", "nodepools.yaml"), blocks((ROOT / page).read_text(), "yaml"), strict=True):
        reader.write(name, "\n".join(text) + "\n")
    for lines in blocks((ROOT / page).read_text(), "console"):
        for line in lines if lines[0].startswith("$ ") else ():
            if line.startswith("$ "):
                printed = reader.run(line.removeprefix("$ "))
            else:
                assert line in printed
    # What `make run` runs, on other ports.
    reader.run("cagrpc serve --log-level warning --ephemeral-ports --state-dir .cagrpc --demonstration")
    listening = json.loads((reader.directory / ".cagrpc" / "endpoints.json").read_text())
    reader.environment = {**reader.environment, "CAGRPC_HTTP": listening["http"]}

    def planned() -> None:
        wait_for(lambda: get_json(ServerAddress(listening["http"]), "/plans") != [], "it has planned")

    play(reader, pages()[page], lambda command: plain(command) in not_run(page), {"cagrpc explain --last": planned})
    reader.stop()
    # The Makefile says so.
    assert "--state-dir $(STATE_DIR)/demonstration --demonstration" in (ROOT / "Makefile").read_text()


def test_a_server_is_connected(reader: PageReader) -> None:
    written = yaml.safe_load(default_text())
    written["listen"] = {each: f"127.0.0.1:{free_port()}" for each in ("provider", "expander", "http")}
    reader.write("cagrpc.yaml", yaml.safe_dump(written))
    page = "docs/guides/connect.md"
    made = reader.run("cagrpc certs --dir state/shown --host cagrpc.example.internal").replace(
        "state/shown", "state/certs"
    )
    (shown,) = blocks((ROOT / page).read_text(), "text")
    assert shown[: len(made.splitlines())] == made.splitlines()
    play(reader, pages()[page], lambda command: plain(command) in not_run(page))
    reader.stop()
    # The flags for CA are those that the server prints.
    flags = [lines for lines in blocks((ROOT / page).read_text(), "console") if lines[0].startswith("--")]
    printed = (reader.directory / "serve.log").read_text()
    for line in itertools.chain.from_iterable(flags):
        assert line.split("=")[0] in printed, line


def test_the_policy_of_ec2_is_made(reader: PageReader) -> None:
    page = "docs/guides/ec2.md"
    play(reader, pages()[page], lambda command: plain(command) in not_run(page))
    made = (reader.directory / "policy.json").read_text()
    assert "REGION" not in made
    assert "prod-nodes" in made


def test_commands_are_found_as_a_reader_would_type_them() -> None:
    text = """
```console
$ cagrpc status | \\
    grep ready
ready
$ cagrpc slack    # what's held
```

```yaml
kubectl: no command
```

```sh
--flag=of-another
# a comment
kubectl patch it -p '{"a":
  1}'
first && \\
  second > file
```
"""
    assert commands(text) == [
        "cagrpc status | \\\n    grep ready",
        "cagrpc slack    # what's held",
        "kubectl patch it -p '{\"a\":\n  1}'",
        "first && \\\n  second > file",
    ]
    assert words("CAGRPC_TOKEN=x cagrpc status > file")[-1] == "status"
