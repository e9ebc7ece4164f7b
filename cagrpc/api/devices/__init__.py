"""Dynamic resource allocation: claims, classes and slices of resource.k8s.io, and what planning makes of them."""
