"""A parameter server: owns slots of a model, applies gradients, and hands slots on.

app          puts the parts together, and follows the slot map
session      the stream to the master        serving    the data port
requests     pulls and pushes     copying    slots on their way     replication    backups
saving       snapshots, journal
held         slots, their locks, and the answers that wait for backups
"""
