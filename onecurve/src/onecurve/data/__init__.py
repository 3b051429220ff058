"""Data modules of images that fit in memory, and are read in batches.

`onecurve.config.data` says what they take.
"""
