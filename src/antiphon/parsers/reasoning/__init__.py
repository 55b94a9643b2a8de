"""Reasoning text and answer, separated by the markers of a model family."""
