"""The training service of a master: runs, runners, and what connects them to jobs, datasets and logs."""
