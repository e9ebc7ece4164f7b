"""What documents point at is there: links, anchors, files and modules. `make docs` builds them; this needs nothing."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
RECORDS = sorted((REPOSITORY / "docs" / "decisions").glob("*.md"))


def named(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def anchors(document: Path) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
        if "://" in target or not (target or anchor):
            continue
        found = (document.parent / target).resolve() if target else document
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_files_and_modules_that_are_named_are_there(document: Path) -> None:
    text = document.read_text()
    if document.name == "CHANGELOG.md":
        return  # of what was
    for path in re.findall(r"`((?:cagrpc|solver|tests|tools|docs|deploy|bench)/[\w./-]*[\w/])`", text):
        assert (REPOSITORY / path).exists(), path
    for dotted in re.findall(r"`((?:cagrpc|solver)(?:\.[a-z_]+)+)`", text):
        if dotted != "cagrpc.yaml":
            assert is_there(dotted), dotted


def is_there(dotted: str) -> bool:
    """Whether it is a module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    try:
        if find_spec(dotted):
            return True
    except ModuleNotFoundError:  # its parent is no package
        pass
    within = find_spec(module)
    return bool(within and within.origin and re.search(rf"\b{name}\b", Path(within.origin).read_text()))


def test_every_page_is_on_the_site() -> None:
    site = (REPOSITORY / "mkdocs.yml").read_text()
    pages = {str(path.relative_to(REPOSITORY / "docs")) for path in (REPOSITORY / "docs").rglob("*.md")}
    assert {page for page in pages if page not in site and not page.startswith("decisions/")} == set()


@pytest.mark.parametrize("record", RECORDS, ids=named)
def test_a_decision_record_has_its_four_parts_on_one_page(record: Path) -> None:
    text = record.read_text()
    assert text.startswith(f"# {int(record.name[:4])}. ")
    parts = re.findall(r"^\*\*(Context|Decision|Alternatives|Consequences)\.\*\*", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Alternatives", "Consequences"]
    assert len(text.split()) < 500
    assert f"(decisions/{record.name})" in (REPOSITORY / "docs" / "architecture.md").read_text()


def reading_order() -> list[str]:
    """Return the pages that are read one after the other, as the site has them."""
    site = (REPOSITORY / "mkdocs.yml").read_text()
    order = re.search(r"^  - Five minutes:\n(.*?)^  - Reference:", site, re.MULTILINE | re.DOTALL)
    assert order
    return re.findall(r"^      - (\S+\.md)$", order[1], re.MULTILINE)


def test_each_page_says_for_whom_it_is_and_what_is_next() -> None:
    order = reading_order()
    for page, following in zip(order, [*order[1:], "reference/interfaces.md"], strict=True):
        document = REPOSITORY / "docs" / page
        said = re.match(r"# .+\n\n\*For [^\n]+\. Next: \[[^\n]+\]\((\S+)\)\.\*\n", document.read_text())
        assert said, f"{page}: below its title it says for whom it is, and what is next"
        assert (document.parent / said[1]).resolve() == REPOSITORY / "docs" / following, page


def test_reference_pages_say_it_as_well() -> None:
    for document in (REPOSITORY / "docs" / "reference").glob("*.md"):
        assert re.match(r"# .+\n\n\*For .+\. Next: \[", document.read_text()), named(document)


def test_the_readme_is_one_screen() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 45
