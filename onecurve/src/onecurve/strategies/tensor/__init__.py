"""Tensor parallelism: layers cut within, by a plan of names and styles."""
