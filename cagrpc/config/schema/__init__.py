"""The schema of the configuration file, a module for each section."""
