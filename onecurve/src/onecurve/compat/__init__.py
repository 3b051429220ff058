"""Private names of others that are used, each with what would make it unneeded."""
