"""Proof on the user's own script: stock DDP and Elastane under churn, compared bit for bit.

trace        what each process writes of every step when asked to: digests of all that decides the bits
plan         pure: which worker joins, leaves or dies at which step, from a seed
elastic_run  one run with such a plan
results      what a run left behind, and whether two runs left the same
compare      pure: the first place where two sets of traces differ
causes       pure: the likely cause in words
run          all of it: `run_verify`, which `elastane verify` and tests call
"""
