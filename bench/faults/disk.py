"""A disk that can be full: a small file system in memory, where whoever runs this may mount one. Elsewhere files may
not grow any more while the journal is written, which the kernel refuses as well."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BYTES = 16 * 2**20
_BLOCKS = (64 * 1024, 4096)


@dataclass
class Disk:
    path: Path
    mounted: bool
    """Whether it is a file system of its own."""
    full: bool = False

    def fill(self, free_bytes: int) -> None:
        """Leave no more than about this."""
        self.full = True
        if not self.mounted:
            return
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            for block in _BLOCKS:
                try:
                    while ballast.write(bytes(block)) == block:
                        continue
                except OSError:
                    continue
            ballast.truncate(max(0, ballast.tell() - free_bytes))

    def empty(self) -> None:
        """Have room again."""
        self.full = False
        (self.path / "ballast").unlink(missing_ok=True)

    @contextmanager
    def writing(self, *files: Path) -> Iterator[None]:
        """Wrap what writes to these files."""
        if self.mounted or not self.full:
            yield
            return
        largest = max((each.stat().st_size for each in files if each.exists()), default=0)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def small_disk(directory: Path, *, mounts: bool = True) -> Iterator[Disk]:
    """Make one below the directory; without `mounts` nothing is mounted."""
    path = directory / "disk"
    path.mkdir()
    mounted = mounts and _mount(path)
    try:
        yield Disk(path, mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def _mount(path: Path) -> bool:
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        return False
    command = [mount, "-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
