"""`elastane chaos`: a script under real faults on this machine, compared with its fixed run after each.

plan      chooses the next fault, from a seed (pure)
cluster   a job whose every part can be broken: workers, master, store, disks, network
faults    the faults: one context manager for each, which ends the fault when left
watch     the job as seen by an outside observer, with times
promises  conditions that must hold after every fault
run       reference, rounds, verdict
"""
