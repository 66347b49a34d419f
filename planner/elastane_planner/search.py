"""Local search around a plan, with the simulated step as judge."""
