"""Planted faults: each breaks one rule of the server, and a drill that does not find its fault is of no use."""
