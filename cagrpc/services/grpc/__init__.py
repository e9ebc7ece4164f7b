"""CA's CloudProvider and Expander services."""
