"""Renders chat messages as prompt text with the model's own chat template, in a sandbox."""
