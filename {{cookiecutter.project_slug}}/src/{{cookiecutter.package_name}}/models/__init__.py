"""Networks and the initialisation of their weights."""
