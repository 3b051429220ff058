"""Shares of global batches, random numbers of each rank, and resuming inside an epoch."""
