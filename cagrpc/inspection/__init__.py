"""Reads a running server's HTTP pages and prints them as tables."""
