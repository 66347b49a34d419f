"""Figures of workers on the agent's side: collected from hosts and served to Prometheus."""
