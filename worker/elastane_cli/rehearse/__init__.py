"""Rehearsals: a job is started on this machine, given planned faults, watched, and compared with a fixed run.

cluster    the job, whose every process can be ended and started again, in steps that the caller knows
stock_run  the fixed run: the script under stock DDP
results    the results of both, and their comparison
faults     one kind of fault, and an injected one
watcher    receives the progress

`verify`, `chaos`, `drill` and `demo` stand on these: each adds its plan, and what must hold after it.
"""
