"""`python -m elastane_cli`: the console script `elastane` without a configuration file.

So the product starts itself: the options are those of who started it, whatever lies in the folder of a run.
"""

from elastane_cli.console import main

main(reads_config=False)
