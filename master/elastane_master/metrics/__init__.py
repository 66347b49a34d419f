"""Metrics of a master and its jobs, and their exposition to Prometheus.

`measures` and `counters` count while the master works, `catalogue` names every metric, `figures` reads the
state at a scrape; all of them are pure. Only `exposition` uses prometheus_client, and only a master that
serves HTTP imports it.
"""
