"""Simulation of policies on traces, with a virtual clock. Pure: lines of text in, results out."""
