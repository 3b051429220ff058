"""Optimizers with a learning rate a part of the network, and learning-rate schedules."""
