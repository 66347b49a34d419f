"""Devices, and the bandwidth between them."""
