"""`solve` and `rank`: reduction, search, proof, and the plan in people's terms with its reasons."""
