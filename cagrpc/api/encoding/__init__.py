"""Bytes and text of others, decoded within bounds. Knows no kind of object."""
