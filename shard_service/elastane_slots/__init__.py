"""Slots of an asynchronously trained model: which process holds each, which tasks it has applied. Pure.

A model is divided into slots for the life of its job. A push carries the name of its task, and each slot
applies each name at most once. `slot_map` assigns slots to processes, `held_slots` judges pushes to a slot,
`staleness` decides which tasks the master may lease, `reopening` which are done again after a slot was
restored.
"""
