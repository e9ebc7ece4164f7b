"""Generate cagrpc/api/gen/ from protos/. Run by `make` and by the build (setup.py); the output is never committed."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = "cagrpc/api/gen"


def build(output_root: Path = ROOT) -> None:
    """Write the generated package below `output_root`/cagrpc/api/gen. Raises SystemExit where protoc refuses."""
    sources = sorted(path.name for path in PROTOS.glob("*.proto"))
    target = output_root / PACKAGE
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text("")
    code = protoc.main(
        [
            "protoc",
            f"-I{PACKAGE}={PROTOS}",  # the virtual path makes the generated imports absolute
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={output_root}",
            f"--pyi_out={output_root}",
            *(f"{PACKAGE}/{name}" for name in sources),
        ]
    )
    if code:
        raise SystemExit(f"protoc failed with exit code {code}")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
