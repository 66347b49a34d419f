"""Scheduling policies: which job gets which devices. `catalogue` has them by name."""
