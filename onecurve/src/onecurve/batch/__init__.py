"""Which samples each rank sees, what it draws for them, and where an epoch resumes."""
