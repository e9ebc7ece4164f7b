"""What a tenant who may create objects in one namespace, or a peer who reaches a port, can make cagrpc do."""
