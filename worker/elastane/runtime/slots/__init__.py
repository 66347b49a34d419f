"""The script's side of asynchronous training with parameter servers: `job.prepare_ps`, `job.push`."""
