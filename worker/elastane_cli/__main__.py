"""`python -m elastane_cli`: the same as the console script `elastane`."""

from elastane_cli.commands.main import main

main()
