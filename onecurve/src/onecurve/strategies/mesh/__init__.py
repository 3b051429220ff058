"""Ranks on a mesh of five axes: which rank differs from which in what."""
