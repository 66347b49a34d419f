"""`elastane report`: what happened to a job, in one file.

job, events, committed steps ─▶ facts (pure) ─▶ html or markdown (pure) ─▶ a file
"""
