"""Draws command lines and damaged checkpoints from a seed, tries them, and judges what came."""
