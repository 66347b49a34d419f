"""Which task is next, who holds it, what is done: pure, without I/O or a clock."""
