"""Containers in which code runs: their rows in the store, their files, and what runs in the sandbox."""
