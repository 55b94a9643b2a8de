"""Chat messages to prompt text by the model's own chat template, in a sandbox."""
