"""The resource slack: how many placeholders of which size, and where they are. Pure arithmetic."""
