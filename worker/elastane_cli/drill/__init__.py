"""`elastane drill`: a rehearsal of a cloud's reclaim of spot nodes, with the user's own script.

plan.py   chooses the steps in which nodes are reclaimed (pure)
node.py   a spot node: a separate agent, and its termination notice
run.py    the fixed run, the drill, the comparison
ps.py     the death of a parameter server
"""
