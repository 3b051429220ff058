"""The life of one run, in this order: entry, legality, launch, fit, record."""
