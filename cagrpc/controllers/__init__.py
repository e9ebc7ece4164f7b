"""Controllers: each a folder, each with a `controller` module. None imports another's insides."""
