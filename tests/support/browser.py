"""Debian's Chromium, headless, driven by its DevTools protocol over a pipe: no port, no driver, no library."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any

import pytest

from tests.support.controlplane.binaries import lacking, program
from tests.support.controlplane.processes import wait_for
from tests.support.waiting import AMPLE_SECONDS

COMMON_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
_PIPE = 'exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>&2'  # commands come at 3, answers and events go out at 4
_QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "/": 191}


class Browser:
    """A running one. Its tabs share nothing: each has storage of its own."""

    def __init__(self, chromium: str, directory: Path) -> None:
        flags = (*COMMON_FLAGS, *_QUIET, "--remote-debugging-pipe", f"--user-data-dir={directory / 'user'}")
        self._log = directory / "chromium.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _PIPE, chromium, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands: IO[bytes] = self._process.stdin
        self._answers: Queue[dict[str, Any]] = Queue()
        self._tabs: dict[str, Tab] = {}
        self._number = 0
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        answer = self.answer(method, session, **parameters)
        assert "error" not in answer, (method, answer["error"])
        return dict(answer["result"])

    def answer(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Return the answer as it is, which may be an error."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while True:
            try:
                answer = self._answers.get(timeout=AMPLE_SECONDS)
            except Empty:
                raise AssertionError(f"{method} has no answer:\n{self._log.read_text()[-2000:]}") from None
            if answer["id"] == self._number:
                return answer

    @contextmanager
    def tab(self, width: int = 1200, height: int = 900) -> Iterator[Tab]:
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            tab.call(f"{domain}.enable")
        tab.size(width, height)
        try:
            yield tab
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)
            del self._tabs[session]

    def close(self) -> None:
        try:
            self._commands.write(b'{"id": 0, "method": "Browser.close"}\0')
            self._commands.close()
            self._process.wait(AMPLE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join(AMPLE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self, answers: IO[bytes]) -> None:
        left = b""
        while piece := os.read(answers.fileno(), 1 << 16):
            *whole, left = (left + piece).split(b"\0")
            for each in map(json.loads, whole):
                if "id" in each:
                    self._answers.put(each)
                elif (tab := self._tabs.get(each.get("sessionId", ""))) is not None:
                    tab.learn(each["method"], each["params"])


@dataclass
class Tab:
    """One page, with what it has complained about."""

    browser: Browser
    session: str
    complaints: deque[str] = field(default_factory=deque)
    """Exceptions, errors on its console, and violations of its policies."""
    requested: deque[str] = field(default_factory=deque)
    """URLs."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def learn(self, event: str, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requested.append(about["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"])[:1000])
        elif event == "Runtime.consoleAPICalled" and about["type"] in {"error", "warning", "assert"}:
            self.complaints.append(json.dumps(about["args"])[:1000])
        elif event == "Log.entryAdded" and about["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        assert not self.call("Page.navigate", url=url).get("errorText")

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """As `prefers_color_scheme="dark"`."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait(self, true: Callable[[], object], what: str) -> None:
        try:
            wait_for(lambda: bool(true()), what)
        except BaseException as error:
            error.add_note(f"{self.text('body')[:3000]}\n{[*self.complaints]}")
            raise

    def press(self, key: str) -> None:
        about: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"Enter": "\r", " ": " ", "/": "/"}.get(key)
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def write(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def accessible(self) -> list[dict[str, str]]:
        """Return role and name of everything that the accessibility tree has, in its order."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            {"role": str(each["role"]["value"]), "name": str(each.get("name", {}).get("value", ""))}
            for each in nodes
            if not each.get("ignored") and "role" in each
        ]

    def screenshot(self, path: Path) -> None:
        """Write the part that is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program."""
    found = program("chromium")
    assert found, lacking("chromium")
    return found


@pytest.fixture(scope="session")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for tests that each take tabs of it."""
    running = Browser(chromium, tmp_path_factory.mktemp("browser"))
    yield running
    running.close()
