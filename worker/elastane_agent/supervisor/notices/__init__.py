"""Spot notices: announcements that a node will be taken away, and when.

`sources` reads each cloud's metadata service, `detect` finds out which cloud this is, `watch` polls.
"""
