"""`elastane top`: jobs on a terminal, by keys from the list of jobs down to one worker.

terminal (keys) ─▶ view (pure: which page, what is selected) ─┐
news (threads that watch the master) ──────────────────────────┴─▶ pages (pure: lines of text) ─▶ terminal
"""
