"""Disks that are full or ill, below a server that works."""
