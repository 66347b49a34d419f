"""Tests of elastane_scheduler."""
