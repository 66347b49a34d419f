"""Hosts that come and go: what `elastane run --hosts` and `elastane launch` have in common.

slots.py      what a discovery script's lines mean (pure)
rests.py      which hosts are left out for a while, and for how long (pure)
remote.py     how a command is started on another host, and what it is told (pure)
discovery.py  runs the script again and again
"""
