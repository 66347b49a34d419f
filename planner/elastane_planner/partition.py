"""The dynamic programme over stages: least load of the most loaded device or link (SPP, INFOCOM 2022)."""
