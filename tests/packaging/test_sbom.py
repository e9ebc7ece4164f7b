"""The bill of materials: all that the lock files pin, as it is installed, under licences that are allowed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import AMPLE_SECONDS
from tools import sbom

REPOSITORY = Path(__file__).resolve().parents[2]
SPOKEN = sbom.Pin("spoken", "1.0", ("0" * 64,))


def described(version: str = "1.0", classifier: str = "", **fields: str) -> Message:
    """Metadata of a project."""
    found = Message()
    found["Version"] = version
    for name, value in fields.items():
        found[name.replace("_", "-")] = value
    if classifier:
        found["Classifier"] = f"License :: OSI Approved :: {classifier}"
    return found


def test_it_has_all_that_the_image_is_installed_from(tmp_path: Path) -> None:
    target = tmp_path / "made" / "sbom.json"
    command = [sys.executable, str(REPOSITORY / "tools" / "sbom.py"), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(target.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "cagrpc"
    locks = [(REPOSITORY / name).read_text() for name in ("requirements.lock", "requirements-ec2.lock")]
    components = [each for each in document["components"] if each["purl"].startswith("pkg:pypi/")]
    whole = "".join(locks)
    assert {f"{each['name']}=={each['version']}" for each in components} == set(
        re.findall(r"^[a-z][^ ]+", whole, re.MULTILINE)
    )
    assert {"boto3", "kubernetes"} <= {each["name"] for each in components}
    hashes = {h["content"] for each in components for h in each["hashes"]}
    assert hashes == set(re.findall(r"sha256:([0-9a-f]{64})", whole))
    assert all(each["licenses"][0]["expression"] for each in components)
    assert len({each["bom-ref"] for each in components}) == len(components) > 20


CARGO: dict[str, Any] = {
    "packages": [
        {"id": name, "name": name, "version": "1.0.0", "license": licence, "targets": [{"kind": [kind]}]}
        for name, licence, kind in (
            ("ours", None, "cdylib"),
            ("linked", "MIT/Apache-2.0", "lib"),
            ("below", "ISC", "lib"),
            ("macros", "Nobody's", "proc-macro"),
            ("building", "Nobody's", "lib"),
        )
    ],
    "resolve": {
        "root": "ours",
        "nodes": [
            {
                "id": "ours",
                "deps": [
                    {"pkg": "linked", "dep_kinds": [{"kind": None}]},
                    {"pkg": "macros", "dep_kinds": [{"kind": None}]},
                    {"pkg": "building", "dep_kinds": [{"kind": "build"}]},
                ],
            },
            {"id": "linked", "deps": [{"pkg": "below", "dep_kinds": [{"kind": "dev"}, {"kind": None}]}]},
            {"id": "below", "deps": []},
        ],
    },
}
CARGO_LOCK = "".join(
    f'[[package]]\nname = "{name}"\nversion = "1.0.0"\nchecksum = "{name} hashed"\n' for name in ("linked", "below")
)


def test_crates_are_there_that_were_linked_and_none_that_only_built() -> None:
    found = sbom.crates(CARGO, CARGO_LOCK)
    assert [(each["purl"], each["licenses"][0]["expression"], each["hashes"][0]["content"]) for each in found] == [
        ("pkg:cargo/below@1.0.0", "ISC", "below hashed"),
        ("pkg:cargo/linked@1.0.0", "MIT OR Apache-2.0", "linked hashed"),
    ]


def test_licences_of_crates_are_held_to_the_same_list() -> None:
    packages = [{**each, "license": "GPL-3.0-only"} for each in CARGO["packages"]]
    with pytest.raises(sbom.Mistake) as raised:
        sbom.crates({**CARGO, "packages": packages}, CARGO_LOCK)
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == ["below", "linked"]


@pytest.mark.parametrize(
    ("found", "expression"),
    [
        (described(License_Expression="MIT"), "MIT"),
        (
            described(License_Expression="mit and apache-2.0 with llvm-exception"),
            "MIT AND Apache-2.0 WITH LLVM-exception",
        ),
        (described(License_Expression="GPL-3.0-only OR MIT"), "GPL-3.0-only OR MIT"),
        (described(License="Apache-2.0"), "Apache-2.0"),
        (described(classifier="ISC"), "ISC"),
    ],
)
def test_a_licence_that_is_allowed(found: Message, expression: str) -> None:
    assert sbom.licence("spoken", found) == expression


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        (described(License_Expression="GPL-3.0-only"), "GPL-3.0-only is none of those allowed"),
        (described(License_Expression="AGPL-3.0-or-later"), "AGPL-3.0-or-later is none"),
        (described(License="LGPL-2.1-only"), "LGPL-2.1-only is none"),
        (described(License_Expression="MIT AND GPL-2.0-only"), "MIT AND GPL-2.0-only is none"),
        (described(License_Expression="GPL-2.0-only AND (MIT OR ISC OR Zlib)"), "is none"),
        (described(License_Expression="MPL-2.0"), "MPL-2.0 is none"),  # reviewed for another project only
        (described(), "not known"),
        (described(License="see LICENSE"), "not known"),
        (described(License="BSD"), "not known"),
        (described(version="1.1", License="MIT"), "1.1 is installed, the lock files pin 1.0"),
    ],
)
def test_what_fails(found: Message, reported: str) -> None:
    with pytest.raises(sbom.Mistake, match=rf"spoken: .*{re.escape(reported)}"):
        sbom.bill([SPOKEN], lambda _: found)


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    other = sbom.Pin("nowhere-to-be-found", "1.0", ("0" * 64,))
    with pytest.raises(sbom.Mistake) as raised:
        sbom.bill([SPOKEN, other], lambda name: described() if name == "spoken" else sbom.installed(name))
    assert len(str(raised.value).splitlines()) == 2


def test_what_a_person_has_read_is_still_so() -> None:
    for name, text in sbom.READ:
        assert sbom.stated_licence(sbom.installed(name)) == text
    for name, expression in sbom.REVIEWED:
        assert sbom.licence(name, sbom.installed(name)) == expression
