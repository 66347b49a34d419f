"""A model's units: their times and bytes."""
