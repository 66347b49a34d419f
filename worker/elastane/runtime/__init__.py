"""What runs inside a training script: the session with the master, the step, the job object."""
