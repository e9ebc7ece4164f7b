"""The bill of materials: all that the lock file pins, as it is installed, under licences that are allowed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest

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


def test_it_has_all_that_the_lock_file_pins(tmp_path: Path) -> None:
    target = tmp_path / "made" / "sbom.json"
    command = [sys.executable, str(REPOSITORY / "tools" / "sbom.py"), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(target.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "cagrpc"
    lock = (REPOSITORY / "requirements.lock").read_text()
    components = document["components"]
    assert [f"{each['name']}=={each['version']}" for each in components] == re.findall(
        r"^[a-z][^ ]+", lock, re.MULTILINE
    )
    assert [h["content"] for each in components for h in each["hashes"]] == re.findall(r"sha256:([0-9a-f]{64})", lock)
    assert all(each["licenses"][0]["expression"] for each in components)
    assert len({each["bom-ref"] for each in components}) == len(components) > 20


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
        (described(version="1.1", License="MIT"), "1.1 is installed, requirements.lock pins 1.0"),
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
