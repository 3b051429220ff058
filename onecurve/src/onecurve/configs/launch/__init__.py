"""Configurations of how processes start, and their limits."""
