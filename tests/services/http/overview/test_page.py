"""The page in a browser, over everything that there can be to show: what it shows, by keyboard, to screen readers, on a
phone, and of texts that would be markup."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import pytest

from cagrpc.services.http.access import Anybody, Asked, Nobody, PageAccess
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.http.overview import feed
from cagrpc.services.http.server import HttpServer
from cagrpc.services.http.site import HttpAnswer, Site, text_answer
from tests.support.artifacts import kept
from tests.support.browser import Browser, Tab
from tests.support.overview import BusyServer

SECTIONS = (
    "now",
    "waiting",
    "increments",
    "fleet",
    "day",
    "log",
    "rounds",
    "decisions",
    "episodes",
    "requests",
    "slack",
    "consolidation",
)
EVIL = """"><img src=x onerror="window.evil=1"><script>window.evil=1</script></title>'&lt;b&gt;"""


@dataclass
class _Tokens:
    """Lets who has one of these."""

    good: set[str] = field(default_factory=set)

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        await asyncio.sleep(0)
        scheme, _, token = asked.authorization.partition(" ")
        if scheme == "Bearer" and token in self.good:
            return None
        why = "the API server does not accept this token" if token else "a bearer token is needed"
        return text_answer(HTTPStatus.UNAUTHORIZED, why)


@contextmanager
def _served(busy: BusyServer, access: PageAccess | None = None, port: int = 0) -> Iterator[HttpServer]:
    pages = busy.pages()
    status = pages.pop("/status").get
    site = Site(Metrics(tuple), lambda: pages, status=status)  # type: ignore[arg-type]
    server = HttpServer("127.0.0.1", port, site, access or Anybody())
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _url(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}/"


@contextmanager
def _shown(browser: Browser, server: HttpServer, width: int = 1200) -> Iterator[Tab]:
    with browser.tab(width) as tab:
        tab.open(_url(server))
        _wait_until_drawn(tab)
        yield tab


def _wait_until_drawn(tab: Tab) -> None:
    drawn = f"{list(SECTIONS)}.every(id => document.getElementById(id + '-content').childNodes.length)"
    tab.wait(lambda: tab.text("#connection") == "Live" and tab.evaluate(drawn), "every section is there")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(feed, "HEARTBEAT_SECONDS", 0.5)


def test_it_shows_every_section_and_keeps_focus_and_what_is_open(browser: Browser) -> None:
    busy = BusyServer(many=2)
    with _served(busy) as server, _shown(browser, server) as tab:
        text = tab.text("main")
        for words in (
            "pods like", "ml/trainer (gang train)", "raise it", "ml/gang", "sold out",  # why pods wait
            "creating, 1 of 3 nodes", "rolled-back", "weight 10", "group-0", "cheapest", "ml/request-0",
            "3 of 8 pods could be had now", "proven to cost at least", "gap", "who holds it up", "tenant-0",
        ):  # fmt: skip
            assert words.lower() in text.lower(), words
        tab.screenshot(kept("overview.png"))
        assert tab.evaluate("document.querySelectorAll('#rounds svg rect.proven').length") == 20
        # The newest round is opened as a table, and stays open, with the focus, when others come.
        tab.evaluate("document.querySelector('#rounds summary').focus()")
        tab.press("Enter")
        assert tab.evaluate("document.querySelector('#rounds details').open")
        tab.evaluate("window.kept = document.activeElement")
        busy.many = 3
        busy.running = 2
        tab.wait(lambda: "30 rounds" in tab.text("#rounds summary"), "the news are there")
        tab.wait(lambda: "creating, 2 of 3 nodes" in tab.text("#increments"), "the progress is shown")
        assert tab.evaluate("document.activeElement === kept && kept.isConnected")
        assert tab.evaluate("document.querySelector('#rounds details').open")
        assert tab.evaluate("document.querySelectorAll('#rounds tbody tr').length") == 30
        # What has the focus goes: so it moves to the heading above.
        tab.evaluate("document.querySelector('#slack summary').focus()")
        busy.slack = lambda: None  # type: ignore[assignment, method-assign, return-value]
        tab.wait(lambda: "failed unexpectedly" in tab.text("#slack"), "it is gone")
        assert tab.evaluate("document.activeElement.id") == "slack-heading"
        assert not tab.complaints
        assert {each.rpartition("/")[2] for each in tab.requested} >= {"", "main.js", "page.css", "icon.svg", "events"}
        assert all(each.startswith(_url(server)) for each in tab.requested)


def test_links_lead_from_a_step_to_its_node_its_increment_and_its_group_and_search_finds_rows(browser: Browser) -> None:
    with _served(BusyServer(many=3)) as server, _shown(browser, server) as tab:
        assert not tab.evaluate("document.querySelector('#fleet details').open")
        tab.evaluate("location.hash = '#node-node-1'")
        tab.wait(lambda: tab.evaluate("document.activeElement.id") == "node-node-1", "the row is unfolded")
        tab.evaluate("document.activeElement.querySelector('a[href^=\"#increment-\"]').click()")
        number = f"increment-{1:032x}"
        tab.wait(lambda: tab.evaluate("document.activeElement.id") == number, "its increment")
        tab.evaluate("document.activeElement.querySelector('a[href^=\"#group-\"]').click()")
        tab.wait(lambda: tab.evaluate("document.activeElement.id") == "group-group-1", "its node group")
        tab.press("/")
        assert tab.evaluate("document.activeElement.id") == "find"
        tab.write("NODE-2 group-1")
        rows = "[...document.querySelectorAll('#shown tbody tr')].filter(e => !e.hidden).map(e => e.id)"
        tab.wait(lambda: tab.evaluate(rows) == ["node-node-2"], "one row has both words")
        assert tab.text("#found") == "1 row"
        tab.evaluate("location.hash = '#rounds'")  # a section is no row: what is searched for stays
        top = "document.querySelector('#rounds').getBoundingClientRect().top"  # the page may be too short for 0
        tab.wait(lambda: tab.evaluate(f"0 <= {top} && {top} < innerHeight"), "its beginning is shown")
        assert tab.text("#found") == "1 row"
        tab.evaluate("location.hash = '#group-group-0'")
        tab.wait(lambda: tab.evaluate("document.activeElement.id") == "group-group-0", "what was not searched for")


def test_it_has_pictures_of_nodes_and_of_the_day_with_words_and_a_scale_of_time(browser: Browser) -> None:
    with _served(BusyServer(many=5)) as server, _shown(browser, server) as tab:
        images = [each["name"] for each in tab.accessible() if each["role"] == "image"]
        assert "CPU: 30 %" in images
        assert "4 nodes: 2 less than a quarter full, 1 less than half full, 1 less than three quarters full" in images
        (cost,) = (each for each in images if each.startswith("Cost, $/h, from "))
        assert cost.endswith("between $2 and $8, at last $2.")
        texts = "[...e.querySelectorAll('text[text-anchor=middle]')].map(t => t.textContent)"
        times = f"[...document.querySelectorAll('#day svg')].map(e => {texts})"
        scales = tab.evaluate(times)
        assert len(scales) == 3
        assert all(len(each) >= 3 and all(re.fullmatch(r"\d\d:\d\dZ", time) for time in each) for each in scales)
        # As logs, messages and objects have times, wherever the browser is: RFC 3339, without the date of today.
        shown = tab.evaluate("[...document.querySelectorAll('time')].map(e => [e.textContent, e.dateTime])")
        assert shown
        assert all(re.fullmatch(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\dZ", said) for said, _ in shown)
        assert all(said[-9:-1] == exact[11:19] for said, exact in shown)


def test_names_are_never_broken_where_there_is_room(browser: Browser) -> None:
    with _served(BusyServer(mark="-m7i.4xlarge")) as server, _shown(browser, server, 1200) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        heights = tab.evaluate(
            "[...document.querySelectorAll('#shown .name')].map(e => e.getBoundingClientRect().height)"
        )
        assert len(heights) > 20
        assert max(heights) < 30  # one line of text
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1200


def test_all_of_it_is_reached_by_keyboard_and_has_names_and_order(browser: Browser) -> None:
    with _served(BusyServer()) as server, _shown(browser, server) as tab:
        focusable = "[...document.querySelectorAll('a, button, input, summary')].filter(e => e.checkVisibility())"
        expected = tab.evaluate(f"{focusable}.map(e => e.innerText)")
        reached = []
        for _ in expected:
            tab.press("Tab")
            reached.append(tab.evaluate("document.activeElement.innerText"))
            assert tab.evaluate("getComputedStyle(document.activeElement).outline").endswith("solid 3px"), reached[-1]
        assert reached == expected
        assert reached[0] == "Skip to the content"

        tree = tab.accessible()
        roles = [each["role"] for each in tree]
        assert {"banner", "navigation", "main", "contentinfo", "status"} <= set(roles)
        named = {"link", "button", "table", "image", "progressbar", "heading", "region", "columnheader", "rowheader"}
        nameless = [each for each in tree if each["role"] in named and not each["name"].strip()]
        assert [each for each in nameless if each["role"] != "columnheader"] == []
        assert {"table", "rowheader", "progressbar"} <= set(roles)
        assert any(each["role"] == "image" and each["name"] == "Cost, bound and gap over time" for each in tree)
        levels = tab.evaluate(
            "[...document.querySelectorAll('h1, h2, h3')].filter(e => e.checkVisibility()).map(e => e.tagName)"
        )
        assert levels == ["H1", *["H2"] * len(SECTIONS)]
        assert tab.evaluate("document.documentElement.lang") == "en"


def test_what_is_announced_is_one_sentence_and_not_again_for_a_while(browser: Browser) -> None:
    busy = BusyServer()
    with _served(busy) as server, _shown(browser, server) as tab:
        assert tab.evaluate("document.querySelectorAll('[aria-live], [role=status], [role=alert]').length") == 2
        tab.wait(lambda: "journal" in tab.evaluate("document.getElementById('news').textContent"), "it is said")
        first = tab.evaluate("document.getElementById('news').textContent")
        assert first == "Not ready: the journal is out of reach."
        assert tab.evaluate("document.title") == "cagrpc: not ready: the journal is out of reach"
        busy.ready = True
        busy.many = 3
        tab.wait(lambda: "33 pods need" in tab.evaluate("document.title"), "the news are there")
        assert tab.evaluate("document.title") == "cagrpc: 33 pods need attention; $0.20/h could be saved"
        assert tab.evaluate("document.getElementById('news').textContent") == first


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_horizontal_scrolling_and_colours_have_contrast(browser: Browser, scheme: str) -> None:
    long = "-" + "x" * 80
    with _served(BusyServer(mark=long)) as server, browser.tab(360, 800) as tab:
        tab.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        tab.open(_url(server))
        _wait_until_drawn(tab)
        tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        tab.screenshot(kept(f"overview-phone-{scheme}.png"))
        too_wide = """[...document.querySelectorAll('main *')]
            .filter(e => e.getBoundingClientRect().right > 361 && !e.closest('thead, svg')).map(e => e.outerHTML)"""
        assert tab.evaluate(too_wide) == []
        assert tab.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
        assert {each["role"] for each in tab.accessible()} >= {"table", "row", "rowheader", "cell"}
        pairs = tab.evaluate(
            """{
                 const painted = (e) => getComputedStyle(e).backgroundColor !== 'rgba(0, 0, 0, 0)';
                 const back = (e) => e === document.documentElement || painted(e) ? e : back(e.parentElement);
                 [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && e.innerText?.trim())
                   .map(e => getComputedStyle(e).color + ' on ' + getComputedStyle(back(e)).backgroundColor);
               }"""
        )
        assert len(set(pairs)) > 3
        for pair in set(pairs):
            assert _contrast(*pair.split(" on ")) >= 4.5, pair


def _contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""

    def luminance(colour: str) -> float:
        parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_names_and_reasons_stay_text(browser: Browser) -> None:
    with _served(BusyServer(mark=EVIL)) as server, _shown(browser, server) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        for section in {*SECTIONS} - {"day"}:  # which has no names
            assert EVIL in tab.evaluate(f"document.getElementById('{section}').textContent"), section
        assert tab.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
        assert tab.evaluate("window.evil") is None
        assert not tab.complaints
        # And were there a mistake, the browser would refuse to make markup of text, and to run it.
        for mistake in (
            "document.body.innerHTML = '<b></b>'",
            "document.body.setAttribute('onclick', 'window.evil = 1')",
            "document.createElement('script').text = 'window.evil = 1'",
        ):
            refused = f"try {{ {mistake}; 'done' }} catch (error) {{ error.name }}"
            assert tab.evaluate(refused) == "TypeError", mistake


def test_a_token_is_asked_for_kept_and_asked_for_again(browser: Browser) -> None:
    access = _Tokens({"good"})
    with _served(BusyServer(), access) as server, browser.tab() as tab:
        tab.open(_url(server))
        tab.wait(lambda: tab.text("#refusal") == "a bearer token is needed", "it asks")
        assert tab.evaluate("document.activeElement.id") == "token"
        assert not tab.evaluate("document.getElementById('shown').checkVisibility()")
        tab.write("bad")
        tab.press("Enter")
        tab.wait(lambda: "does not accept" in tab.text("#refusal"), "it is refused")
        assert tab.evaluate("sessionStorage.length") == 0
        tab.write("good")
        tab.press("Enter")
        _wait_until_drawn(tab)
        assert tab.evaluate("Object.values(sessionStorage)") == ["good"]
        assert "good" not in tab.evaluate("location.href + document.cookie + JSON.stringify(localStorage)")
        assert not tab.evaluate("document.getElementById('access').checkVisibility()")
        tab.open(_url(server))  # again: it is not asked for
        _wait_until_drawn(tab)
        access.good = set()  # it is revoked
        tab.wait(lambda: "does not accept" in tab.text("#refusal"), "it asks again")
        assert "Not connected" in tab.text("#connection")
        access.good = {"other"}
        tab.write("other")
        tab.press("Enter")
        _wait_until_drawn(tab)
        tab.evaluate("document.getElementById('forget').click()")
        tab.wait(lambda: tab.text("#refusal") == "a bearer token is needed", "it is forgotten")
        assert tab.evaluate("sessionStorage.length") == 0
        assert not tab.evaluate("document.getElementById('shown').checkVisibility()")


IMPATIENT = """{
  const real = window.setTimeout;
  window.setTimeout = (work, milliseconds) => real(work, milliseconds >= 20000 ? milliseconds / 20 : milliseconds);
}"""
"""What takes a minute takes some seconds."""


def test_it_says_the_next_news_later_pauses_when_hidden_and_notices_silence(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = BusyServer()
    said = "document.getElementById('news').textContent"
    with _served(busy) as server, browser.tab() as tab:
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=IMPATIENT)
        tab.open(_url(server))
        _wait_until_drawn(tab)
        tab.wait(lambda: "Not ready" in tab.evaluate(said), "it is said")
        busy.ready = True
        tab.wait(lambda: "pods need" in tab.evaluate(said), "the next news are said, later")
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        tell = "document.dispatchEvent(new Event('visibilitychange'))"
        tab.evaluate(hide % "true" + tell)
        tab.wait(lambda: tab.text("#connection") == "Paused", "it gives its place away")
        tab.wait(lambda: not server._application._feed._open, "its place is free")
        busy.many = 4
        tab.evaluate(hide % "false" + tell)
        tab.wait(lambda: tab.text("#connection") == "Live", "it goes on")
        tab.wait(lambda: "group-3" in tab.text("#fleet"), "the news are there")
        monkeypatch.setattr(feed, "HEARTBEAT_SECONDS", 60.0)
        tab.wait(lambda: "the server is silent" in tab.text("#connection"), "a broken connection is noticed")


def test_without_anybody_to_ask_no_token_is_asked_for(browser: Browser) -> None:
    with _served(BusyServer(), Nobody()) as server, browser.tab() as tab:
        tab.open(_url(server))
        tab.wait(lambda: "who may read it is asked of a cluster" in tab.text("#connection"), "it says why")
        assert not tab.evaluate("document.getElementById('access').checkVisibility()")


def test_it_says_since_when_it_is_not_connected_and_connects_again(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = BusyServer()
    with browser.tab() as tab:
        with _served(busy) as server:
            port = server.port
            tab.open(_url(server))
            _wait_until_drawn(tab)
        tab.wait(lambda: tab.text("#connection").startswith("Not connected since "), "it says so")
        assert "Trying again" in tab.text("#connection")
        assert "ml/trainer" in tab.text("#waiting")  # what was known last
        busy.many = 3
        tab.evaluate("window.loaded = 'once'")
        with _served(busy, port=port):
            tab.wait(lambda: tab.text("#connection") == "Live", "it has connected")
            tab.wait(lambda: "group-2" in tab.text("#fleet"), "the news are there")
            assert tab.evaluate("window.loaded") == "once"
        monkeypatch.setattr(feed, "page_version", lambda: "a newer one")
        with _served(busy, port=port):
            tab.wait(lambda: _is_loaded_anew(tab), "it loads the files of another version")
            _wait_until_drawn(tab)


def _is_loaded_anew(tab: Tab) -> bool:
    """Return whether what was set in the page is gone; a page that is being loaded cannot be asked."""
    found = tab.browser.answer("Runtime.evaluate", tab.session, expression="window.loaded", returnByValue=True)
    return "error" not in found and found["result"]["result"].get("value") is None
