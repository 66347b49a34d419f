"""Writes logged values to tracking tools: TensorBoard, MLflow, Weights & Biases. No torch here.

Each tracker runs in a separate process (`process`, `__main__`). It reads the committed history from the
master, not the worker's memory, so that steps count once whoever leads and however often they were replayed;
and random numbers drawn by these libraries do not affect the training.
"""
