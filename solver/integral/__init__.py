"""From fractional plans to whole nodes: packing, diving, the integral master problem. Proves nothing."""
