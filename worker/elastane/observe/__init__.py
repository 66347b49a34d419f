"""Metrics of workers and their agent for Prometheus: `figures` (pure) in workers, `exposition` in the agent.

    trainer adds to WorkerFigures --> a small file, once a second --> the agent reads all when it is scraped

Workers write files rather than serve ports: no port has to be reserved, found or protected, and the last
values of a dead worker can still be read.
"""
