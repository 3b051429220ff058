"""Averages of the weights over training, on each rank of what it holds."""
