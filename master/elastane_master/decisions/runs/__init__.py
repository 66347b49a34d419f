"""The training service: runs that users submit and runners that start their processes. Pure."""
