"""The agent: starts and restarts the workers of a job on this machine (`elastane run`).

budget.py           restart budget: whether and when to restart a dead worker (pure)
policy.py           decides what to do about exits, job changes and signals (pure)
master_process.py   an embedded master, restarted on the same port
guard.py            stops the embedded master and its store if the agent is killed
settings.py         settings of an agent
placement.py        maps workers to hosts, and tells host faults from script faults (pure)
worker_command.py   command line and environment of a worker, here or on another host
node.py             the agent of one worker on another host; node_policy.py decides for it (pure)
price_table.py      a schedule of prices, sent to the master when each becomes due
agent.py            the supervisor: carries out the policy's actions
"""
