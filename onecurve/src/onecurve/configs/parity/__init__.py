"""What `parity.py` is asked, with limits."""
