"""What runs on a machine for the training service: it prepares the code of runs. No torch here."""
