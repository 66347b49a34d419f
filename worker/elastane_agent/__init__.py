"""Starts and supervises training processes on one or many hosts. Does not import torch or `elastane`."""
