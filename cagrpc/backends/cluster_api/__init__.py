"""Machines of Cluster API: infrastructure of any provider that it has, above all on premises."""
