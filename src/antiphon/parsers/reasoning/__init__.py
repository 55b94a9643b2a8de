"""Separates reasoning from the answer by the markers of a model family."""
