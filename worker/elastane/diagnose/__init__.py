"""What in a script cannot be exact: found before training, with its place and what to do about it."""
