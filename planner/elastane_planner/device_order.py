"""Recursive device ordering: clusters that are tightly connected stay together (SPP, INFOCOM 2022)."""
