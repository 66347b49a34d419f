"""Durability: the write-ahead stream, snapshots and fencing in Redis or Valkey."""
