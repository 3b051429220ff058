"""Fully sharded data parallelism: units, and whole tensors out of shards."""
