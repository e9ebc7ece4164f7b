"""From a problem in people's terms to the small integer problem that the algorithms work on. Knows no algorithm."""
