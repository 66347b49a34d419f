"""Proof with the user's own script: stock DDP and Elastane under churn, compared bit for bit.

trace        records of every step of a process: digests of everything that decides the bits
plan         pure: which worker joins, leaves or dies at which step, from a seed
elastic_run  one run with such a plan
compare      pure: the first place where two sets of traces differ
causes       pure: the likely cause as text
run          the whole proof: `run_verify`, which `elastane verify` and tests call
"""
