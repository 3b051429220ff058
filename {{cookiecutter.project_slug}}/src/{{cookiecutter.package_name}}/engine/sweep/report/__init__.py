"""What a sweep came to: a table in the terminal, sweep.csv, sweep.html and sweep.png."""
