"""Seeded random scripts against stock DDP: see `fuzz`."""
