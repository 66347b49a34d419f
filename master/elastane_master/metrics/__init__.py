"""What a master measures of itself and its jobs, and how that is told to Prometheus.

`measures` and `tally` count while the master works, `catalogue` names every metric, `figures` reads the
state at a scrape; all of them pure. `exposition` alone knows prometheus_client, and is imported only by a
master that serves HTTP.
"""
