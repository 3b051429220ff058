"""Callbacks: one file for each."""
