"""Data modules of images that fit in memory, and are read in batches."""
