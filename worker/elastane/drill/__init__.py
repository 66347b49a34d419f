"""`elastane drill`: a rehearsal of what a cloud does to spot nodes, with the user's own script.

plan.py   in which steps nodes are taken away (pure)
node.py   a spot node: an agent of its own, and the notice that it gets
run.py    the fixed run, the drill, the comparison
"""
