"""What makes machines; one folder for each."""
