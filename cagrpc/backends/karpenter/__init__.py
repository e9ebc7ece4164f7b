"""Nodes by Karpenter's NodeClaims (karpenter.sh/v1)."""
