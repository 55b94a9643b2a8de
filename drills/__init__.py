"""Failure drills on real server processes and real databases: `python -m drills`."""
