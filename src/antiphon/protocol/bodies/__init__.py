"""Bodies of the smaller endpoints, each with its types and its decoder."""
