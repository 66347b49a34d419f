"""Text of jobs, events, explanations and curves, as the commands, `elastane top` and reports show it."""
