"""Modules and data as people write them, each under every strategy: see `rows`."""
