"""What a sweep came to: a table in the terminal, sweep.csv and sweep.html."""
