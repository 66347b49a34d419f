"""Metrics of workers, shared by the workers that count and the agent that serves them. Pure.

    trainer adds to WorkerFigures --> heartbeat --> master --> the agent asks for them when it is scraped

Workers serve no ports: no port has to be reserved, found or protected, and one scrape of the agent has all
its workers, wherever they run.
"""
