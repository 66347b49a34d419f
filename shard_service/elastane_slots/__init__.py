"""Slots of a model that is trained asynchronously: where they are, what is applied to them. Pure.

A model is divided into slots for the life of its job. A push bears the name of its task, and each slot
applies each name at most once. `slot_map` says which process owns a slot, `held_slots` decides about a push
there, `staleness` decides which tasks may be leased at the master, `reopening` which are done again after a
slot was restored.
"""
