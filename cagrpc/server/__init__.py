"""The composition root: from settings to a running server."""
