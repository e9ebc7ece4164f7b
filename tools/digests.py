"""Pin images by the digests that their tags have now: the base of the Dockerfile, and what the chart's values name.
`make digests` needs Docker with buildx, and the registries, and renders the manifests anew. The project's own image has
no digest before it is pushed; at a release `make digests IMAGE=registry.example/cagrpc:0.2.0` writes it into the chart.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN = "cagrpc"
_IMAGE = re.compile(r"^(?P<before>ARG BASE=|\s+image: )(?P<name>[^\s@]+)(?:@\S+)?", re.MULTILINE)
_PARTS = re.compile(
    r'^(?P<indent> +)repository: (?P<name>\S+)\n +tag: "?(?P<tag>[^"\s]*)"?(?P<of_tag>.*)\n'
    r' +digest: "?[^"\s]*"?(?P<of_digest>.*)$',
    re.MULTILINE,
)
"""An image of the chart's values."""


def pin(root: Path, own: str = "") -> list[str]:
    """Rewrite what is below `root` and return the images, pinned; `own` is the project's image as it was pushed. Raises
    SystemExit where a registry gives no digest, and then has written nothing."""
    digests: dict[str, str] = {}

    def asked(name: str) -> str:
        if name not in digests:
            digests[name] = _digest(name)
        return digests[name]

    def pinned(found: re.Match[str]) -> str:
        return f"{found['before']}{found['name']}@{asked(found['name'])}"

    def in_parts(found: re.Match[str]) -> str:
        name = f"{found['name']}:{found['tag']}"
        if found["name"].rpartition("/")[2] == OWN:
            if not own:
                return found[0]
            name = own
        repository, _, tag = name.rpartition(":")
        lines = (
            f"repository: {repository}",
            f'tag: "{tag}"{found["of_tag"]}',
            f'digest: "{asked(name)}"{found["of_digest"]}',
        )
        return "\n".join(found["indent"] + line for line in lines)

    deploy = root / "deploy"
    files = (root / "Dockerfile", deploy / "chart" / "values.yaml", *sorted((deploy / "values").glob("*.yaml")))
    texts = {path: _PARTS.sub(in_parts, _IMAGE.sub(pinned, path.read_text())) for path in files}
    for path, text in texts.items():
        path.write_text(text)
    return [f"{name}@{digest}" for name, digest in digests.items()]


def _digest(name: str) -> str:
    """Return that of all platforms together."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - as the Makefile would
    except OSError as error:
        raise SystemExit(f"digests are asked for with Docker and its buildx, which cannot be run: {error}") from None
    digest = done.stdout.strip()
    if done.returncode or not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise SystemExit(
            f"{name}: its registry gives no digest, and nothing was changed: {done.stderr.strip() or digest}"
        )
    return digest


if __name__ == "__main__":
    for image in pin(ROOT, *sys.argv[1:2]):
        print(image)
