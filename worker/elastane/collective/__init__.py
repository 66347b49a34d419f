"""All-reduce whose result does not depend on the number of workers that take part."""
