"""Pipeline plans: which units of a model run on which devices, and in which order. Pure: no clock, no I/O.

A plan cuts a model's units into stages, gives each stage one or several devices, and is judged by a simulated
step. The master decides with it, workers run its schedule, `elastane plan` shows it.
"""
