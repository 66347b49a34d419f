"""Tests of elastane_slots."""
