"""Draws command lines from a seed, tries them, and judges what came."""
