"""A job's model divided into stages: its units, and the executor that runs their micro-batches."""
