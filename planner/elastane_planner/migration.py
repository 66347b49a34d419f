"""Bytes that move from one plan to another, and when a better plan is worth them."""
