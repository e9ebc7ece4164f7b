"""The Karpenter backend, with a Karpenter that a test plays."""
