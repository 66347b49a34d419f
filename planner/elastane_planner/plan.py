"""A plan: stages of consecutive units, each on one or several devices."""
