"""Modules and data as people write them: rows of tests/parity/cases.py."""
