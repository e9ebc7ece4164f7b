"""A demonstration: a cluster in memory, beside which `cagrpc serve --demonstration` works as beside any other."""
