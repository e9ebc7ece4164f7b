"""The software bill of materials of the image: what the lock files that it is installed from pin, and the crates of
cagrpc-native where it is installed, as CycloneDX JSON, with the licence of each. Fails on a licence that is not known
or not allowed.
`make sbom` writes build/sbom.json.

Licences are read from the metadata of what is installed, which has to be what is pinned; those of crates are cargo's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

ROOT = Path(__file__).resolve().parent.parent
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-ec2.lock")
"""Of the project, and of the plug-ins that the image has."""
NATIVE = ROOT / "native"

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "PSF-2.0",
        "Zlib",
    }
)
"""SPDX identifiers of permissive licences."""
REVIEWED: Mapping[tuple[str, str], str] = {
    ("certifi", "MPL-2.0"): "copyleft of its own files only, and they are passed on as they are",
}
"""Project and licence that is not in ALLOWED -> why it may be used all the same."""
READ: Mapping[tuple[str, str], str] = {
    ("aiosignal", "Apache 2.0"): "Apache-2.0",
    ("cel-python", ""): "Apache-2.0",
    ("cronsim", "BSD License"): "BSD-3-Clause",
    ("google-re2", "BSD License"): "BSD-3-Clause",
    ("jinja2", "BSD License"): "BSD-3-Clause",
    ("kubernetes", "Apache License Version 2.0"): "Apache-2.0",
    ("markdown-it-py", "MIT License"): "MIT",
    ("mdurl", "MIT License"): "MIT",
    ("numba", "BSD"): "BSD-2-Clause",
    ("ortools", "Apache 2.0"): "Apache-2.0",
    ("pendulum", "MIT License"): "MIT",
    ("protobuf", "3-Clause BSD License"): "BSD-3-Clause",
    ("python-dateutil", "Dual License"): "Apache-2.0 OR BSD-3-Clause",
    ("s3transfer", "Apache License 2.0"): "Apache-2.0",
}
"""Project and what its metadata says, where that is no SPDX expression -> the licence, as a person has read it."""


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    version: str
    sha256: tuple[str, ...]
    """Of every file that is published of this version."""


class Mistake(Exception):  # noqa: N818 - named for what happened
    """For people: what is wrong with which project."""


def pins(locks: str) -> list[Pin]:
    """Return the pins of the text of lock files, each once."""
    found = re.findall(r"^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", locks, re.MULTILINE)
    pinned = (Pin(name, version, tuple(re.findall("[0-9a-f]{64}", hashes))) for name, version, hashes in found)
    return sorted(set(pinned), key=lambda each: each.name)


def installed(name: str) -> Message:
    """Return the metadata of a project. Raises PackageNotFoundError."""
    found = metadata(name)
    assert isinstance(found, Message), "so it is, and a Message has more ways to be read than it promises"
    return found


def stated_licence(found: Message) -> str:
    """Return what a project's metadata states as its licence, by the newest of the three fields for it."""
    classifiers = (str(each) for each in found.get_all("Classifier") or ())
    named = " and ".join(each.split(" :: ")[-1] for each in classifiers if each.startswith("License"))
    return str(found.get("License-Expression") or found.get("License") or named)


def licence(name: str, found: Message) -> str:
    """Return the SPDX expression, allowed or reviewed. Raises Mistake."""
    text = stated_licence(found)
    try:
        expression = str(canonicalize_license_expression(READ.get((name, text), text)))
    except InvalidLicenseExpression:
        raise Mistake(
            f"{name}: its licence is not known: its metadata says {text[:60]!r}. Read it, and put it into READ of"
            f" {__file__}"
        ) from None
    if not _allowed(expression) and (name, expression) not in REVIEWED:
        raise Mistake(
            f"{name}: its licence {expression} is none of those allowed. Do without it, or have it reviewed and put it,"
            f" with the reason, into REVIEWED of {__file__}"
        )
    return expression


def _allowed(expression: str) -> bool:
    """One with parentheses is for a person to read."""
    return "(" not in expression and any(set(each.split(" AND ")) <= ALLOWED for each in expression.split(" OR "))


def bill(locked: Iterable[Pin], metadata_of: Callable[[str], Message] = installed) -> dict[str, Any]:
    """Return the document, the same for the same lock file and installation. Raises Mistake with every problem."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    components, mistakes = [], []
    for pin in locked:
        try:
            components.append(_component(pin, metadata_of))
        except Mistake as mistake:
            mistakes.append(str(mistake))
    if mistakes:
        raise Mistake("\n".join(mistakes))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": project["name"],
                "name": project["name"],
                "version": str(installed(project["name"])["Version"]),  # the tag's, when it was installed
                "licenses": [{"expression": project["license"]}],
            }
        },
        "components": components,
    }


def _component(pin: Pin, metadata_of: Callable[[str], Message]) -> dict[str, Any]:
    try:
        found = metadata_of(pin.name)
    except PackageNotFoundError:
        raise Mistake(f"{pin.name} is not installed; `make sbom` installs what the lock files pin") from None
    if found.get("Version") != pin.version:
        raise Mistake(f"{pin.name}: {found.get('Version')} is installed, the lock files pin {pin.version}; make sbom")
    purl = f"pkg:pypi/{pin.name}@{pin.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": pin.name,
        "version": pin.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": each} for each in pin.sha256],
        "licenses": [{"expression": licence(pin.name, found)}],
    }


def crates(metadata_: Mapping[str, Any], lock: str) -> list[dict[str, Any]]:
    """Return the components of what `cargo metadata` lists, in which a library has been linked into the first package:
    not what only built it. `lock` has the hashes. Raises Mistake with every problem."""
    packages = {each["id"]: each for each in metadata_["packages"]}
    needs = {each["id"]: each["deps"] for each in metadata_["resolve"]["nodes"]}
    hash_of = {(each["name"], each["version"]): each.get("checksum") for each in tomllib.loads(lock)["package"]}
    root = metadata_["resolve"]["root"]
    found, waiting = {root}, [root]
    while waiting:
        for need in needs[waiting.pop()]:
            linked = any(kind["kind"] is None for kind in need["dep_kinds"])
            builds = any("proc-macro" in each["kind"] for each in packages[need["pkg"]]["targets"])
            if linked and not builds and need["pkg"] not in found:
                found.add(need["pkg"])
                waiting.append(need["pkg"])
    components, mistakes = [], []
    for package in sorted((packages[each] for each in found - {root}), key=lambda each: str(each["name"])):
        name, version = package["name"], package["version"]
        described = Message()
        described["License-Expression"] = (package["license"] or "").replace("/", " OR ")
        try:
            expression = licence(name, described)
        except Mistake as mistake:
            mistakes.append(str(mistake))
            continue
        purl = f"pkg:cargo/{name}@{version}"
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "hashes": [{"alg": "SHA-256", "content": hash_of[name, version]}],
                "licenses": [{"expression": expression}],
            }
        )
    if mistakes:
        raise Mistake("\n".join(mistakes))
    return components


def _crates_installed() -> list[dict[str, Any]]:
    try:
        installed("cagrpc-native")
    except PackageNotFoundError:
        print("without cagrpc-native and its crates, which is not installed here (make native)")
        return []
    arguments = ["--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
    command = ["cargo", "metadata", *arguments, "--manifest-path", str(NATIVE / "Cargo.toml")]
    try:
        told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout  # noqa: S603 - nothing of it is anybody's
    except (OSError, subprocess.CalledProcessError) as error:
        raise Mistake(f"the crates of cagrpc-native are not known: cargo metadata failed: {error}") from error
    return crates(json.loads(told), (NATIVE / "Cargo.lock").read_text())


def main(target: Path) -> None:
    try:
        document = bill(pins("".join(each.read_text() for each in LOCKS)))
        document["components"] += _crates_installed()
    except Mistake as mistake:
        raise SystemExit(str(mistake)) from None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=2) + "\n")
    for component in document["components"]:
        print(f"{component['name']:26} {component['version']:14} {component['licenses'][0]['expression']}")
    kinds = Counter(component["licenses"][0]["expression"] for component in document["components"])
    print(f"{target}: {kinds.total()} projects, {len(kinds)} licences")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "sbom.json")
