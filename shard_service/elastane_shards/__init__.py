"""Task queues: which task is next, who holds it, which are done. Pure, without I/O or a clock.

`dynamic.DynamicQueue` and `lockstep.LockstepQueue` are the two disciplines of the task queue; `samplers`
computes which samples an EST takes; `permutation` shuffles in O(1) memory.
"""
