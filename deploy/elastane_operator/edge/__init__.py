"""Edge of the operator: the API server and the masters."""
