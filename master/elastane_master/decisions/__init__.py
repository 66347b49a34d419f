"""State machines of a job: `(state, now, event) -> (state, effects, reason)`, without I/O."""
