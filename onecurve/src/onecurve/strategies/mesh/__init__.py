"""The mesh of ranks with its five axes, and the strategy that exposes all of them."""
