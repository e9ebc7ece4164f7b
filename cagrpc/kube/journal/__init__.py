"""The fleet's journal as custom resources."""
