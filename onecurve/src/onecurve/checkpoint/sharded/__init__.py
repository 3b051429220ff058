"""Sharded checkpoints: every rank writes what it holds."""
