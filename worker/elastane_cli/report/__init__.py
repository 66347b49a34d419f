"""`elastane report`: the history of a job as a single file.

job, events, committed steps ─▶ facts (pure) ─▶ html or markdown (pure) ─▶ a file
"""
