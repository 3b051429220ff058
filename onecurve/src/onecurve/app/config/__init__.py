"""Models of the configuration: types and bounds of keys, and combinations that cannot run."""
