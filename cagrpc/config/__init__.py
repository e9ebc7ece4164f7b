"""The configuration file: read, checked, and turned into settings."""
