"""Kubernetes objects created by the operator, as plain dictionaries. Pure."""
