"""The jobs that a master serves, and whether it may: hosts, leadership, limits, what is stored of a job."""
