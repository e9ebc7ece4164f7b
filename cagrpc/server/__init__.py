"""The composition root: builds a running server from settings."""
