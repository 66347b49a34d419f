"""Asynchronous training with parameter servers, as a script sees it: `job.prepare_ps`, `job.push`."""
