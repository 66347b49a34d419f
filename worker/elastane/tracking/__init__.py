"""Logged values to where users already look: TensorBoard, MLflow, Weights & Biases. No torch here.

A tracker runs in a process of its own (`process`, `__main__`). It reads the committed history from the
master, not the worker's memory, so that steps count once whoever leads and however often they were replayed;
and what these libraries draw from the interpreter's random numbers does not reach the training.
"""
