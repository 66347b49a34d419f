"""Runner of the training service: prepares and starts the ranks of runs on a machine. No torch."""
