"""`python -m elastane.cli`: the same as the console script `elastane`."""

from elastane.cli.main import main

main()
