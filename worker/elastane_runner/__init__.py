"""What runs on a machine for the training service: it prepares and starts the ranks of runs. No torch."""
