"""Tensor parallelism: shards the matrices of layers, by a plan of module names and styles."""
