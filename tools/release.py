"""Releases. `make release VERSION=X.Y.Z` checks that the tree can be released as that version, tags it, and builds the
wheel and the source distribution into dist/; pushing the tag starts .github/workflows/release.yml. The version itself
is nowhere in the tree: setuptools-scm takes it from the tag. `--notes` prints a version's section of the CHANGELOG.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def sections(changelog: str) -> dict[str, str]:
    """Return the text of each version (or `Unreleased`), newest first. A version without a date has none."""
    found = list(_SECTION.finditer(changelog))
    ends = [*(each.start() for each in found[1:]), len(changelog)]
    return {
        each["name"]: changelog[each.end() : end].strip()
        for each, end in zip(found, ends, strict=True)
        if each["date"] or each["name"] == "Unreleased"
    }


def problems(version: str, changelog: str, chart: str, tags: list[str], changed: str) -> list[str]:
    """Return all that is against releasing `version`. `changed` is what git calls changed in the tree."""
    if not _VERSION.fullmatch(version):
        return [f"VERSION is {version!r}; say `make release VERSION=X.Y.Z`"]
    found = []
    if changed:
        found.append(f"the tree has changes that are not committed:\n{changed}")
    if f"v{version}" in tags:
        found.append(f"the tag v{version} exists; a release is never made twice")
    if newer := [tag for tag in tags if _VERSION.fullmatch(tag[1:]) and _order(tag[1:]) > _order(version)]:
        found.append(f"{', '.join(newer)} is newer than {version}")
    parts = sections(changelog)
    if list(parts)[:2] != ["Unreleased", version]:
        found.append(f"CHANGELOG.md has to begin with '## [Unreleased]' and '## [{version}] - YYYY-MM-DD'")
    elif parts["Unreleased"] or not parts[version]:
        found.append(f"CHANGELOG.md: move what stands below [Unreleased] to [{version}]")
    found += [
        f"deploy/chart/Chart.yaml has to say {field}: {version}, before `make manifests`"
        for field in ("version", "appVersion")
        if not re.search(rf"^{field}: {re.escape(version)}$", chart, re.MULTILINE)
    ]
    return found


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603, S607 - the developer's own git


def release(version: str) -> None:
    """Check, tag and build. Raises SystemExit with everything that is wrong; then there is no tag."""
    found = problems(
        version,
        (ROOT / "CHANGELOG.md").read_text("utf-8"),
        (ROOT / "deploy" / "chart" / "Chart.yaml").read_text("utf-8"),
        _git("tag", "--list", "v*").splitlines(),
        _git("status", "--porcelain"),
    )
    if found:
        raise SystemExit("\n".join(found))
    _git("tag", "--annotate", f"v{version}", "--message", f"cagrpc {version}")
    try:
        for arguments in ([], ["--wheel", "plugins/ec2"]):
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", *arguments]
            subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - nothing of it is anybody's
        _check_wheels(version)
    except BaseException:
        _git("tag", "--delete", f"v{version}")
        raise
    print(f"dist/ has {version}, and the commit is tagged. Release it: git push origin v{version}")


def _check_wheels(version: str) -> None:
    for name in ("cagrpc", "cagrpc_ec2"):
        if not list((ROOT / "dist").glob(f"{name}-{version}-*.whl")):
            raise SystemExit(f"dist/ has no wheel of {name} {version}")


def main(arguments: list[str]) -> None:
    """Check, build and tag `VERSION`, or print the notes of `--notes VERSION`."""
    match arguments:
        case ["--notes", version]:
            print(sections((ROOT / "CHANGELOG.md").read_text("utf-8"))[version])
        case _:
            release(arguments[0] if arguments else "")


if __name__ == "__main__":
    main(sys.argv[1:])
