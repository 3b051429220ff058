"""Configurations of the Trainer, and their limits."""
