"""Runs a step of a job whose model is cut into stages, with the bits of the uncut job."""
