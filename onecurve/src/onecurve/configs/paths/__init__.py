"""Configurations of where things are, and their limits."""
