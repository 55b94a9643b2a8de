"""Tool-call formats of model families, one row or file each."""
