"""The assume cache: the one home of room that is spoken for and not in the cluster yet, as in the kube-scheduler, Kueue
and Karpenter (`state.Cluster`). Controllers assume and forget in it; everything that decides reads it through a
`Snapshot`, one for each round. What each kind of owner holds is a module: planned pods (`placements`),
ProvisioningRequests (`bookings`), pods that a disruption displaces (`displaced`), placeholders (`slack`)."""
