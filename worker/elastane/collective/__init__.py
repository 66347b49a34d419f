"""The all-reduce whose result does not depend on how many workers take part."""
