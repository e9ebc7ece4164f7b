"""Backends, which create and delete instances; one folder each."""
