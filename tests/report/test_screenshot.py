"""The page in a browser: Debian's Chromium, headless."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cagrpc.offline.inputs import Inputs
from cagrpc.report.make import make_report
from cagrpc.report.page import as_html
from solver import Budget
from tests.report.clusters import half_empty, written
from tests.support.browser import COMMON_FLAGS
from tests.support.waiting import AMPLE_SECONDS

IMAGE = Path(__file__).parents[2] / "docs" / "guides" / "images" / "report.png"
PNG = b"\x89PNG\r\n\x1a\n"


def in_browser(chromium: str, directory: Path, *flags: str) -> str:
    page = directory / "report.html"
    cluster = written(directory / "cluster.json", half_empty())
    page.write_text(as_html(make_report(Inputs((cluster,)), Budget(60, deterministic_seconds=1.0))))
    command = [chromium, *COMMON_FLAGS, f"--user-data-dir={directory / 'user'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=True).stdout


def test_a_browser_shows_the_report(chromium: str, tmp_path: Path) -> None:
    """With CAGRPC_SCREENSHOTS=1 the picture of the documentation is made anew."""
    shot = IMAGE if os.environ.get("CAGRPC_SCREENSHOTS") == "1" else tmp_path / "report.png"
    in_browser(chromium, tmp_path, f"--screenshot={shot}", "--window-size=900,1150")
    assert shot.read_bytes().startswith(PNG)
    assert len(shot.read_bytes()) > 20_000  # an empty page has two


def test_the_page_is_whole_and_has_words_for_its_pictures(chromium: str, tmp_path: Path) -> None:
    shown = in_browser(chromium, tmp_path, "--dump-dom", "--window-size=360,800")
    assert shown.count("<svg") == shown.count('role="img"') == shown.count("<desc>")
    assert 'lang="en"' in shown
    assert "What to change first" in shown
