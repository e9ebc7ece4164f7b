"""Untrusted bytes and text, decoded within bounds, for objects of any kind."""
