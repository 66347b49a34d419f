"""The history of a job: its events as structs, their sentences, and the ring over time. Pure.

    events      a struct for every kind: who writes it, who reads it
    describe    the sentence that people read
    upgrade     events of releases before the structs
    fold        the ring over time: who was in it, since when, and why it changed
    incidents   what was lost, and how soon a ring was there again

`elastane_proto.history_wire` has them as messages.
"""
