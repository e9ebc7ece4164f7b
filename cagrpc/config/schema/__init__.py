"""The configuration file as it is written, section by section."""
