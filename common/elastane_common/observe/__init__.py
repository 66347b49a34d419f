"""Metrics of workers, shared by the workers that count and the agent that serves them. Pure.

    trainer adds to WorkerFigures --> a small file, once a second --> the agent reads all when it is scraped

Workers write files rather than serve ports: no port has to be reserved, found or protected, and the last
values of a dead worker can still be read.
"""
