"""The page in a browser: Debian's Chromium, headless."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from cagrpc.offline.inputs import Inputs
from cagrpc.report.make import make_report
from cagrpc.report.page import as_html
from solver import Budget
from tests.report.clusters import budget, daemons, half_empty, node, pod, written
from tests.support.artifacts import kept
from tests.support.browser import COMMON_FLAGS, Browser
from tests.support.waiting import AMPLE_SECONDS

IMAGE = Path(__file__).parents[2] / "docs" / "guides" / "images" / "report.png"
BUDGET = Budget(60, deterministic_seconds=1.0)
PNG = b"\x89PNG\r\n\x1a\n"


def in_browser(chromium: str, directory: Path, *flags: str) -> str:
    page = directory / "report.html"
    cluster = written(directory / "cluster.json", half_empty())
    page.write_text(as_html(make_report(Inputs((cluster,)), BUDGET)))
    command = [chromium, *COMMON_FLAGS, f"--user-data-dir={directory / 'user'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=True).stdout


def test_a_browser_shows_the_report(chromium: str, tmp_path: Path) -> None:
    """With CAGRPC_SCREENSHOTS=1 the picture of the documentation is made anew."""
    shot = IMAGE if os.environ.get("CAGRPC_SCREENSHOTS") == "1" else kept("report.png")
    in_browser(chromium, tmp_path, f"--screenshot={shot}", "--window-size=900,1150")
    assert shot.read_bytes().startswith(PNG)
    assert len(shot.read_bytes()) > 20_000  # an empty page has two


def test_the_page_is_whole_and_has_words_for_its_pictures(chromium: str, tmp_path: Path) -> None:
    shown = in_browser(chromium, tmp_path, "--dump-dom", "--window-size=360,800")
    assert shown.count("<svg") == shown.count('role="img"') == shown.count("<desc>")
    assert 'lang="en"' in shown
    assert shown.index("can be saved in") < shown.index("What can be had") < shown.index("If all pods were placed anew")


def test_nothing_is_wider_than_a_phone(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(as_html(make_report(Inputs((written(tmp_path / "cluster.json", half_empty()),)), BUDGET)))
    with browser.tab(390, 844) as tab:
        tab.open(page.as_uri())
        tab.wait(lambda: tab.evaluate("document.readyState === 'complete'"), "the page to be there")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 14
        assert not tab.complaints
        tab.screenshot(kept("report-phone.png"))


def test_forty_nodes_print_on_one_page(chromium: str, tmp_path: Path) -> None:
    kinds, zones = ("m7i.xlarge", "m7i.4xlarge", "r7i.4xlarge"), ("zone-1", "zone-2", "zone-3")
    nodes = [node(f"n{index}", kinds[index % 3], zones[index % 7 % 3]) for index in range(40)]
    pods = [
        pod(f"web-{index}", f"n{index % 40}", owner="Job" if index % 9 == 0 else "ReplicaSet") for index in range(90)
    ]
    cluster = written(tmp_path / "cluster.json", [*nodes, *pods, budget("keep", "web", 3), *daemons(nodes)])
    page, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(as_html(make_report(Inputs((cluster,)), BUDGET)))
    flags = (*COMMON_FLAGS, f"--user-data-dir={tmp_path / 'user'}", "--no-pdf-header-footer")
    command = [chromium, *flags, f"--print-to-pdf={printed}", page.as_uri()]
    subprocess.run(command, capture_output=True, timeout=AMPLE_SECONDS, check=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes())) == 1
