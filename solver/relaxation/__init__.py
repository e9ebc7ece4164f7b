"""Linear programs over a reduced problem: lower bounds on every stage of the objective, and fractional plans."""
