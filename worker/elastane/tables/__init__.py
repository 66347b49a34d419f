"""Weights of slots at parameter servers: blocks, rows, their optimizers and files.

Contains no sockets, threads or locks; callers hold the slot's lock.
"""
