"""The best plan for a model on devices: every stage of the search, within its budget."""
