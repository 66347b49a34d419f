"""The Kubernetes objects that the operator makes, as plain dictionaries. Pure."""
