"""What is asked from outside: gRPC and HTTP. Thin; they translate and ask."""
