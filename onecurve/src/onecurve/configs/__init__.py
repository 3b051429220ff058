"""Configurations that every project has, on Hydra's search path: groups of YAML files."""
