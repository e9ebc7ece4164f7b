"""The independent checker: imports the model and nothing that plans."""
