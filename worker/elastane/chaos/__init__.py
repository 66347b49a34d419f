"""`elastane chaos`: a script under real faults on this machine, held against its fixed run after each.

plan      which fault strikes next, from a seed (pure)
cluster   a job whose every part can be broken: workers, master, store, disks, network
faults    what can be done to it: one context manager for each fault, which ends the fault when left
watch     what an outside observer sees of the job, with times
promises  what must hold after every fault, whatever it was
run       reference, rounds, verdict
"""
