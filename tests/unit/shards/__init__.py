"""Tests of elastane_shards."""
