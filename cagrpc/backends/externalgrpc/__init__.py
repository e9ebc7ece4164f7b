"""Machines of other externalgrpc providers: whatever cloud one of them reaches."""
