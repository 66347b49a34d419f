"""Pipeline parallelism: a model divided into stages, and the executor that runs its micro-batches."""
