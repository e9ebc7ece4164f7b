"""One request to the API server and its answer or error."""
