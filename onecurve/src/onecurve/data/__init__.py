"""Images that fit in memory: loaders that take a batch as one tensor."""
