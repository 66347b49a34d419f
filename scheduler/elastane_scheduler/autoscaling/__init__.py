"""How many workers a job should have, by the times of its steps, prices and what its user wants. Pure.

modes         what the user wants, as parsed
speed_model   seconds of a step by number of workers, fitted to what was measured
objectives    the best number of workers by a mode
autoscaler    when to measure, to change, to verify and to go back
stragglers    which workers are slower than their like, and why
spot_deadline when on-demand machines are needed beside spot, for a deadline
"""
