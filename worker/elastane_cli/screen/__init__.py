"""`elastane top`: a terminal view by keys and mouse, from the list of jobs down to one worker.

terminal ── keys, clicks ──▶ view (pure: state, input -> state, effect) ── effects ──▶ operating ─▶ master
   ▲                              │ what is selected, sorted, filtered, asked    answers come as inputs
   └─ lines ◀─ pages (pure) ◀─────┴─── tables, body, columns, side ◀── news (threads that watch the master)
"""
