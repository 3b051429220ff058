"""Many runs by one command: going on after a kill, search, the report."""
