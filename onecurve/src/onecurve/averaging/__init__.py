"""Averages of the weights over training; each rank averages the weights that it holds."""
