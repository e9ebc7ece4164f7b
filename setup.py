"""The one build step that pyproject.toml cannot say: the protobuf code is generated from protos/, never committed.

`pip install .` and wheels get it in the build tree, an editable install in the source tree.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def generate(output_root: Path) -> None:
    """Run tools/build_protos.py, which is no package and so is loaded from its path."""
    path = ROOT / "tools" / "build_protos.py"
    spec = importlib.util.spec_from_file_location("build_protos", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(output_root)


class BuildWithProtos(build_py):
    """build_py, and cagrpc/api/gen beside what it copies."""

    def run(self) -> None:
        super().run()
        generate(ROOT if self.editable_mode else Path(self.build_lib))


setup(cmdclass={"build_py": BuildWithProtos})
