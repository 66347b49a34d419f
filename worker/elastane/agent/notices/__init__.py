"""Notices that a node will be taken away: where they are read, and how soon it goes.

`sources` knows each cloud's answers, `detect` which cloud this is, `watch` asks again and again.
"""
