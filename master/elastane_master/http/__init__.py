"""The master's HTTP port: metrics, probes, and the dashboard.

  connections  limits on connections and idle time                     port    binds, serves, stops
  routes       request handlers: translate, decide nothing             gather  the figures of a scrape

Imported only by a master that serves HTTP, so that others do not load aiohttp.
"""
