"""Code that runs inside a training script: the job object, the training step, the session with the master."""
