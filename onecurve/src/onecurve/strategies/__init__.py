"""Strategies that distribute training over processes and devices: one module per parallelism."""
