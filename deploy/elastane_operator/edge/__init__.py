"""Where the operator meets the world: the API server, the masters, kopf."""
