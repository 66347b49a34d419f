"""Traces, played through a policy with a virtual clock. Pure: lines of text in, results out."""
