"""What a checkpoint file holds, and how it is read."""
