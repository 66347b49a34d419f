"""The master's HTTP port: metrics, probes, and a page for people.

    connections  who may connect, and for how long without a request     port    binds, serves, stops
    routes       what is served: translates, decides nothing             gather  the figures of a scrape

Imported only by a master that serves HTTP: aiohttp is not loaded else.
"""
