"""A project as a user of the library might have it: what the library's tests train."""
