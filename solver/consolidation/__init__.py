"""From the nodes that stand to those that should: which to replace by which, step by step, and how good that is."""
