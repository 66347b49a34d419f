"""The history of a job: its events as structs, what they say, and what they tell when read in order. Pure.

    events      a struct for every kind: who writes it, who reads it
    describe    the sentence that people read
    upgrade     events as they were before they were structs
    fold        the ring over time: who was in it, since when, and why it changed

`elastane_proto.history_wire` has them as messages.
"""
