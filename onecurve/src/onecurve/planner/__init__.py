"""Which mesh to take: what each would hold, send and need, found without running any."""
