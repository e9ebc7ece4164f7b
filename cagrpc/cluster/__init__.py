"""The cluster in numbers: what planning reads of it, and what is reserved on its nodes."""
