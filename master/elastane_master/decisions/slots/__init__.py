"""Decisions about the slots of a model that parameter servers hold: who owns them, and what may be leased."""
