"""Shared by workers, agents and commands: calls of masters, credentials, errors, processes, determinism.

No module here imports torch when it is loaded, and none knows a training script.
"""
