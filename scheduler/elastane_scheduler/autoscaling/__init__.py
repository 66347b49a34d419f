"""How many workers a job should have, from its step times, prices and its user's goal. Pure.

modes         the user's goal, parsed
speed_model   seconds of a step by number of workers, fitted to measurements
objectives    the best number of workers for a mode
autoscaler    when to measure, to change, to verify and to go back
stragglers    which workers are slower than others of their device type, and why
spot_deadline when spot machines alone do not meet a deadline, and on-demand machines are needed
"""
