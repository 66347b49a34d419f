"""What the operator decides. Pure: no clock, no network, no Kubernetes; see `reconcile`."""
