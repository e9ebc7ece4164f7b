"""Commands of the documents: found in their fenced blocks, and run by a shell as they stand there, by a reader who
has what a page takes for granted. Which are run where is in `tests/documents/lists.py`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.controlplane.kubectl import install_scripts
from tests.support.waiting import AMPLE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SHELLS = ("console", "bash", "sh", "shell")
_FENCE = re.compile(r"^ *```(\S*) *$")


def documents() -> Iterator[Path]:
    """Yield the pages for people, by name."""
    yield from sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text: str, *languages: str) -> Iterator[list[str]]:
    """Yield the lines of each fenced block in one of the languages."""
    language: str | None = None
    found: list[str] = []
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if language is None:
            if fence:
                language, found = fence[1], []
        elif fence and not fence[1]:
            if language in languages:
                yield found
            language = None
        else:
            found.append(line)


def commands(text: str) -> list[str]:
    """Return the commands of a page, in order. In a session with prompts everything else is output; a line that begins
    with a flag is some program's, and no command."""
    found = []
    for lines in blocks(text, *SHELLS):
        prompted = any(line.startswith("$ ") for line in lines)
        rest = iter(lines)
        for line in rest:
            if prompted and not line.startswith("$ "):
                continue
            command = line.removeprefix("$ ")
            while not _whole(command):
                command += "\n" + next(rest)
            if command.strip() and not command.lstrip().startswith(("#", "--")):
                found.append(command.strip())
    return found


def _whole(command: str) -> bool:
    """Return whether a shell would not ask for another line."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return not command.rstrip().endswith(("\\", "|", "&&"))


def words(command: str) -> list[str]:
    """Return the words of the first simple command, without what it is piped or redirected to."""
    found = []
    for word in shlex.split(command.replace("\\\n", " "), comments=True):
        if word in {"|", ">", "&", "&&", ";", ">>", "<"}:
            break
        found.append(word)
    return found


@dataclass
class PageReader:
    """Somebody who types what a page says, in a directory of their own that has the repository's files."""

    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    serving: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        programs = self.directory / ".venv" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        install_scripts(programs)
        (programs / "python").symlink_to(sys.executable)
        for entry in ROOT.iterdir():
            if not entry.name.startswith((".", "build")):
                (self.directory / entry.name).symlink_to(entry)
        mine = {name: text for name, text in os.environ.items() if not name.startswith("CAGRPC_")}
        path = os.pathsep.join([str(programs), mine.get("PATH", "")])
        self.environment = {
            **mine,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.directory),
            **self.environment,
        }

    def write(self, name: str, text: str) -> None:
        """A file that the page takes for granted."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, command: str) -> str:
        """Type it; a server is left running. Returns what it printed."""
        if words(command)[:2] == ["cagrpc", "serve"]:
            self._serve(command)
            return ""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=AMPLE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, command: str) -> None:
        given = words(command)
        state = self.directory / (given[given.index("--state-dir") + 1] if "--state-dir" in given else ".cagrpc")
        log = self.directory / "serve.log"
        with log.open("a") as written:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.directory,
                env=self.environment,
                stdout=written,
                stderr=written,
                text=True,
            )
        self.serving.append(process)
        give_up = time.monotonic() + AMPLE_SECONDS
        while not (state / "endpoints.json").exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """End what still serves, as Ctrl-C does."""
        for process in self.serving:
            process.terminate()
            assert process.wait(AMPLE_SECONDS) == 0, (self.directory / "serve.log").read_text()
        self.serving.clear()

    def kill(self) -> None:
        for process in self.serving:
            process.kill()
            process.wait()


def play(
    reader: PageReader,
    written: Sequence[str],
    skipped: Callable[[str], bool],
    before: Mapping[str, Callable[[], object]] | None = None,
) -> None:
    """Type the commands of a page in order, but for those that are skipped. What has to happen `before` one of them is
    named by how it begins."""
    for command in written:
        for begins, happens in (before or {}).items():
            if command.startswith(begins):
                happens()
        if not skipped(command):
            reader.run(command)
