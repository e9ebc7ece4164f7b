"""The page at `/`: its files, what it is told, and the stream that tells it."""
