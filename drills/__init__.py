"""What becomes of state when things break, on real processes and real databases: `python -m drills`."""
