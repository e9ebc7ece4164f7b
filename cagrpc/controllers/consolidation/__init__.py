"""Consolidation: replaces nodes by cheaper ones, step by step, as Karpenter's disruption controller does."""
