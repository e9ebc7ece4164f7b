"""Pin images by the digests that their tags have now: the base of the Dockerfile and what deploy/ runs. `make digests`
needs Docker with buildx, and the registries. The project's own image has no digest before it is pushed; at a release
`make digests IMAGE=registry.example/cagrpc:0.2.0` writes it into deploy/cagrpc.yaml.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN = "cagrpc"
_IMAGE = re.compile(r"^(?P<before>ARG BASE=|\s+image: )(?P<name>[^\s@]+)(?:@\S+)?", re.MULTILINE)


def pin(root: Path, own: str = "") -> list[str]:
    """Rewrite what is below `root` and return the images, pinned; `own` is the project's image as it was pushed. Raises
    SystemExit where a registry gives no digest, and then has written nothing."""
    digests: dict[str, str] = {}

    def pinned(found: re.Match[str]) -> str:
        name = found["name"]
        if name.rpartition("/")[2].partition(":")[0] == OWN:
            if not own:
                return found[0]
            name = own
        if name not in digests:
            digests[name] = _digest(name)
        return f"{found['before']}{name}@{digests[name]}"

    files = (root / "Dockerfile", *sorted((root / "deploy").glob("*.yaml")))
    texts = {path: _IMAGE.sub(pinned, path.read_text()) for path in files}
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
