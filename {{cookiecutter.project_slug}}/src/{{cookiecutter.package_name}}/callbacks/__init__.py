"""What happens around training: one file per callback."""
