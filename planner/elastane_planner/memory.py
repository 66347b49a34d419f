"""Memory of a stage: weights, gradients by EST, optimizer state, and the stash of micro-batches in flight."""
