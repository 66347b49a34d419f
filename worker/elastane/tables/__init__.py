"""Weights of slots, at parameter servers: blocks, rows, their optimizers, and their files.

No socket, no thread and no lock: whoever holds a slot's lock calls.
"""
