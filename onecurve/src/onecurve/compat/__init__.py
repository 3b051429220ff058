"""Private names of other packages that we use, each with what would make it unnecessary."""
