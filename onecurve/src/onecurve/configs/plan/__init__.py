"""What `plan.py` is asked, with limits."""
