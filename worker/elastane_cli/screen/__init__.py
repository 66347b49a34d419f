"""`elastane top`: a keyboard-driven terminal view, from the list of jobs down to one worker.

terminal (keys) ─▶ view (pure: which page, what is selected) ─┐
news (threads that watch the master) ──────────────────────────┴─▶ pages (pure: lines of text) ─▶ terminal
"""
