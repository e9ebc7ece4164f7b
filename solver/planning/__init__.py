"""`solve` and `rank`: reduction, search, proof, and the plan in the terms of the problem, with its reasons."""
