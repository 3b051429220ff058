"""For a project's own tests: its scripts as fixtures of pytest, and what their runs leave."""
