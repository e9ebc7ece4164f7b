"""The long test of the decoders: `python -m pytest -m long`, or `make fuzz`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.long("ten minutes of fuzzing")
def test_ten_minutes_of_fuzzing_find_nothing(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="make fuzz installs it")
    seconds = int(os.environ.get("FUZZ_SECONDS", "600"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.api.decoders.fuzz"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "FUZZ_SECONDS": str(seconds)},
        capture_output=True,
        text=True,
        timeout=seconds + 300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
