"""Optimizers with a learning rate for each part of the network, and learning-rate schedules."""
