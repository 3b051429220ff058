"""Callbacks for every strategy: one file each."""
