"""The version is the tag's, and cagrpc's of the same version is needed: both are found when it is built."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools_scm import get_version

HERE = Path(__file__).resolve().parent
VERSION = get_version(
    root="../..", relative_to=__file__, fallback_version="0.0.0+unknown", dist_name="cagrpc-ec2"
)  # as in the [tool.setuptools_scm] of cagrpc
NEEDED = [line.partition("#")[0].strip() for line in (HERE / "requirements.in").read_text().splitlines()]

setup(version=VERSION, install_requires=[f"cagrpc=={VERSION}", *filter(None, NEEDED)])
