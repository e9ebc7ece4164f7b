"""Manifests and CSV tables: the input of offline planning, with the location of every error."""
