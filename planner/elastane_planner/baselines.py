"""Plans of other systems, for comparison: data parallel, GPipe, 1F1B, PipeDream, HetPipe."""
