"""The order in which each device runs the blocks of a step."""
