"""The agent: starts workers of a job on this machine, and starts them again (`elastane run`).

budget.py           may a dead worker be started again, and when (pure)
exit_codes.py       what the agent ends with, for a shell or for an orchestrator (pure)
policy.py           what follows from an exit, a change of the job, a signal (pure)
launch.py           a child's first act: ask the kernel to end with its parent
process.py          one child process: output line by line, exit, signals
output.py           lines of many processes on one terminal
master_process.py   a master on this machine, started again on the same port
guard.py            ends what a master leaves behind when its starter was killed
settings.py         what an agent is asked for
placement.py        which worker runs on which host, and what an exit says of a host (pure)
worker_command.py   how a worker is started, here or on another host
node.py             the agent of one worker on another host; node_policy.py decides for it (pure)
price_table.py      prices that the master is told as each time comes
agent.py            the supervisor that carries the policy out
"""
