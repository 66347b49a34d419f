"""One step of a plan in virtual time."""
