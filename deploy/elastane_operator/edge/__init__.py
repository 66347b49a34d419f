"""Edge of the operator: the API server, the masters and kopf."""
