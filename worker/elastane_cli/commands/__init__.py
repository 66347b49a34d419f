"""The command line: one module per group of commands, none of which imports torch or numpy."""
