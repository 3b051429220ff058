"""Configurations of sweeps, and their limits."""
