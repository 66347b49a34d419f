"""A relay: carries the sessions of a host's workers to the master in one stream (docs/decisions/0080)."""
