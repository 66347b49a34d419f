"""Reads PipeDream's profiles (graph.txt)."""
