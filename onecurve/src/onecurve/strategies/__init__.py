"""How a run is spread over processes and devices: one file per parallelism."""
