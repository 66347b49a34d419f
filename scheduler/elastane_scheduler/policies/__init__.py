"""Policies: who gets which devices. `catalogue` has them by name."""
