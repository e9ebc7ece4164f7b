"""What a running server's HTTP pages hold, read and laid out for people."""
