"""Images that fit in memory: loaders that cut a batch as one tensor."""
