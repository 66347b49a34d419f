"""Figures of workers and their agent for Prometheus: `figures` (pure) in workers, `exposition` in the agent.

    trainer adds to WorkerFigures --> a small file, once a second --> the agent reads all when it is scraped

A file and not a port for each worker: nothing has to be reserved, found or protected, and what a dead worker
told last is still there.
"""
