"""Probes, metrics and JSON pages."""
