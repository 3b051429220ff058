"""A project as a user of the library might have it: what the engine's tests train."""
