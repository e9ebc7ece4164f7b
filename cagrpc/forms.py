"""The base of every mapping that is read from a configuration file, for its sections wherever they are declared: most
in `config.schema`, a backend's own beside the backend. What a problem looks like to people is `config.problems`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Form(BaseModel):
    """A mapping in a file: unknown fields are errors, and nothing is guessed (the text "3" is no number)."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


FilePath = Annotated[str, Field(min_length=1)]
"""Relative to the file that it stands in."""
