"""Scheduling of jobs on devices, and its costs. Pure: no clock, no socket, no process.

A policy takes the jobs, the devices and the costs of changes, and returns an allocation with a reason for
each job. The simulator drives the same policies with a virtual clock.

    plan        one job: seconds of a step on given devices, devices that a step needs, ranges of ESTs
    jobs        what a policy knows of a job; execution: how it progresses while its devices change
    policies    who gets which devices
    simulation  traces played through a policy
"""
