"""Manifests and CSV tables: the input of offline planning, with every error at its place."""
