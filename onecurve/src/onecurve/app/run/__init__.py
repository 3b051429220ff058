"""What a rank does, from top to bottom: fit, evaluate, predict, and the record of it."""
