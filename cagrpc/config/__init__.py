"""The configuration file: its schema, reading and validation, and the settings made of it."""
