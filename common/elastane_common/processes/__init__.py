"""Child processes, and their output on one terminal. No torch: the agent, hosts and rehearsals use it.

child.py    one child process: output line by line, exit, signals
launch.py   child-side launcher: ties the child's life to its parent's, then execs the command
output.py   merges the output lines of many processes on one terminal
"""
