"""Many runs by one command: grids and searches that resume after a kill, and their report."""
