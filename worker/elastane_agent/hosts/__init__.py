"""Hosts that come and go: common code of `elastane run --hosts` and `elastane launch`.

slots.py      parses the lines of a discovery script (pure)
exclusions.py decides which hosts are excluded for a while, and for how long (pure)
remote.py     builds commands and variables for processes on other hosts (pure)
discovery.py  runs the script repeatedly
"""
