"""A parameter server: owns slots of a model, applies gradients, and hands slots over.

app          assembles the parts, and follows the slot map
session      the stream to the master        serving    the data port
requests     pulls and pushes     copying    slots in transit     replication    backups
saving       snapshots, journal
held         slots, their locks, and answers that wait for backups
"""
