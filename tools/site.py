"""Hooks of mkdocs: the pages of the site that no file in docs/ holds. The root's documents become pages, the reference
of the configuration is written from its JSON schema, and links are turned to where they lead on the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cagrpc.cli.main import parser
from cagrpc.cli.usage import reference

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "docs" / "reference" / "config.schema.json"
CONFIGURATION = "reference/configuration.md"
COMMANDS = "reference/commands.md"
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
_SOURCES = {page: source for source, page in ROOT_PAGES.items()}
_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")

INTRODUCTION = """\
Every field of the configuration file, from its [JSON schema](config.schema.json), which `cagrpc config schema` prints
and editors understand. `cagrpc config check FILE` reports every error at once."""

Schema = Mapping[str, Any]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every decision record in the navigation."""
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    for section in config.nav or ():
        if "Decisions" in section:
            section["Decisions"] = [f"decisions/{name}" for name in records]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated."""
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, CONFIGURATION, content=configuration(json.loads(SCHEMA.read_text("utf-8")))))
    files.append(File.generated(config, COMMANDS, content=reference(parser())))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn the links of one page, which are right in the repository, to the site."""
    return relinked(markdown, page.file.src_uri)


def relinked(markdown: str, page: str) -> str:
    """Return the page with links within the repository turned to pages; what the site lacks keeps its text."""
    here = posixpath.dirname(_SOURCES.get(page, f"docs/{page}"))

    def turned(found: re.Match[str]) -> str:
        text, link, anchor = found.groups(default="")
        target = posixpath.normpath(posixpath.join(here, link))
        if "://" in link or not (ROOT / target).exists():
            return found.group()
        on_site = ROOT_PAGES.get(target) or target.removeprefix("docs/")
        if target == on_site:
            return text
        return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(turned, markdown)


def configuration(schema: Schema) -> str:
    """Return the reference of the configuration as Markdown: a section for the document and each kind of object in
    it."""
    definitions: Mapping[str, Schema] = schema["$defs"]
    sections = [
        "# Configuration",
        INTRODUCTION,
        *_section("The document", schema),
    ]
    for name in sorted(definitions):
        sections += _section(name, definitions[name])
    return "\n\n".join(sections) + "\n"


def _section(title: str, schema: Schema) -> Iterator[str]:
    yield f"## {title}"
    if description := schema.get("description"):
        yield str(description)
    if "enum" in schema:
        yield "One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + "."
    if fields := schema.get("properties"):
        required = schema.get("required", ())
        rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
        rows += [_row(name, field, required=name in required) for name, field in fields.items()]
        yield "\n".join(rows)
        for name, field in fields.items():
            for part in _inline(field):
                yield from _section(f"{title}: {name}", part)


def _inline(field: Schema) -> Iterator[Schema]:
    """Return what a field holds objects of that have no name of their own."""
    if "properties" in field:
        yield field
        return
    within = [*field.get("anyOf", ()), *field.get("oneOf", ()), field.get("additionalProperties"), field.get("items")]
    for each in within:
        if isinstance(each, Mapping):
            yield from _inline(each)


def _row(name: str, field: Schema, *, required: bool) -> str:
    default = "required" if required else _default(field.get("default"))
    meaning = " ".join(str(field.get("description", "")).split())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{name}`", _type(field), default, meaning)) + " |"


def _default(value: object) -> str:
    return "" if value is None or isinstance(value, Mapping) else f"`{json.dumps(value)}`"


def _type(field: Schema) -> str:
    """Return what a field takes, as links to sections where it is an object of the schema."""
    if reference := field.get("$ref"):
        name = str(reference).rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for alternatives in (field.get("anyOf"), field.get("oneOf")):
        if alternatives:
            names = [_type(one) for one in alternatives if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(names))
    if values := field.get("enum", [field["const"]] if "const" in field else []):
        return " or ".join(f"`{value}`" for value in values)
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), Mapping):
        return f"map of {_type(field['additionalProperties'])}"
    return _bounded(field)


def _bounded(field: Schema) -> str:
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[key]:g}" for key, sign in bounds.items() if key in field]
    return " ".join([str(field.get("type", "any")), ", ".join(limits)]).strip()
