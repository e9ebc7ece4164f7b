"""The Kubernetes API, whatever the objects are: requests, watches, Events, the Lease, the journal."""
