"""Requests to the API server, their responses and errors."""
