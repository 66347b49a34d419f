"""Finds what cannot be exact in a script before training, with the place and the remedy."""
