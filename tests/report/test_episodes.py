"""Episodes as Markdown and HTML."""

from __future__ import annotations

from html.parser import HTMLParser

from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.episodes.model import Ended, Episode, GroupNodes, Outcome, ScaleUp
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.prices import NodePrices, PriceList
from cagrpc.report.episodes import HEADINGS, HOW, as_html, as_markdown
from cagrpc.report.standing import groups_that_stand
from tests.controllers.episodes.told import BIG, SMALL, Told, node_group

HOSTILE = "a|b](http://x) <script>alert(1)</script> `*_\u202e"


def episode(at: float, came: float, planned: float | None, name: str = "g") -> Episode:
    outcome = None if planned is None else Outcome((GroupNodes(name, 1, planned),), 0, 20.0)
    ups = (ScaleUp(at, name, 2),)
    return Episode(
        f"{at:g}",
        at,
        at + 60,
        Ended.SERVED,
        7,
        1,
        Outcome((GroupNodes(name, 2, came, estimated=True),), 0, 40.0),
        outcome,
        0.5,
        ups,
        ups,
        {name: (0, 2)},
        (f"the price of {name}",),
    )


EVERY = [episode(100, 2.0, 1.0), episode(200, 1.0, 2.0), episode(300, 1.0, 1.0), episode(400, 1.0, None)]


def test_where_the_autoscaler_was_better_comes_first() -> None:
    for text in (as_markdown(EVERY), as_html(EVERY)):
        places = [text.index(heading) for heading in HEADINGS.values()]
        assert places == sorted(places)
        assert HOW in text
        assert "The autoscaler beside the plan: pods waited for nodes 4 times" in text
        for words in (
            "$2.00/h, 2 nodes",
            "the price of g",
            "$0.50/h",
            "0 to 2",
            "g +2",
            "40 s",
            "1970-01-01T00:03:20Z",
        ):
            assert words in text


def test_figures_of_several_are_not_added_up() -> None:
    twice = as_markdown([episode(100, 2.0, 1.25), episode(200, 2.5, 1.25)])
    assert "4.5" not in twice
    assert "$2.00/h" in twice


def test_texts_of_whoever_may_create_objects_stay_texts() -> None:
    found = [episode(100, 2.0, 1.0, HOSTILE)]
    markdown, html = as_markdown(found), as_html(found)
    assert "](http" not in markdown.replace("\\]", "")
    assert "<script" not in markdown.replace("\\<", "")
    assert "<script" not in html
    assert "\u202e" not in markdown + html
    rows = [line for line in markdown.splitlines() if line.startswith("| 1970")]
    assert {len(line.replace("\\|", "").split("|")) for line in rows} == {9}


def test_the_page_needs_nothing_from_elsewhere() -> None:
    class Links(HTMLParser):
        found: list[str] = []  # noqa: RUF012 - of one test

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value or "" for name, value in attrs if name in ("src", "href")]
            assert tag != "script"

    Links().feed(as_html(EVERY))
    assert Links.found == []


def test_node_groups_that_stand_have_the_labels_that_their_nodes_share() -> None:
    told, prices = Told(), NodePrices(PriceList(embedded_catalogue()))
    for group in (BIG, BIG, SMALL, node_group("m7i.large", 1930, 0.0)):
        told.node(group)
    state: ClusterState = told.state
    groups, estimated = groups_that_stand(state, prices)
    assert [each.instance_type for each in groups] == ["big", "m7i.large", "small"]
    big, priced, _ = groups
    assert (big.labels["agentpool"], big.zone, big.allocatable["cpu"]) == ("big", "a", 8000)
    assert "kubernetes.io/hostname" not in big.labels
    assert estimated == {each.id for each in groups} - {priced.id}
    assert all(each.price_usd_per_hour > 0 for each in groups)
