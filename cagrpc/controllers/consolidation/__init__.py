"""Consolidation: from the nodes that stand to those that should, step by step."""
