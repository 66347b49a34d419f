"""Pipeline plans: which units of a model run on which devices, and in which order. Pure: no clock, no I/O.

A plan divides a model's units into stages, assigns one or several devices to each, and is judged by a
simulated step. The master plans with this package, workers run its schedules, `elastane plan` shows plans.
"""
