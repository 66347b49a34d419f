"""Errors of the planner."""
