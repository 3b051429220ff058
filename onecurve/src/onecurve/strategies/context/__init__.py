"""Long sequences: their positions cut between ranks, and attention over all of them."""
