"""Several nodes as one run: the agent of each node meets the others, and hears of their end."""
