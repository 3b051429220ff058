"""Which configurations can run, beside what single keys may be."""
