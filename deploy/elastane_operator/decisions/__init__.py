"""Decisions of the operator. Pure: no clock, no network, no Kubernetes; see `reconcile`."""
