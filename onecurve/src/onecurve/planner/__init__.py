"""Which mesh to use: what each would hold, send and take, estimated without running any."""
