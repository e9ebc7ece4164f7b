"""Backends that break one promise each, over the simulated one, which keeps them all."""
