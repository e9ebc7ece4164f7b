"""Node groups, instances and increments: whole or not at all. Knows no wire format and no cluster."""
