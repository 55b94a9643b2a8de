"""What engines in child processes share: supervision, their wire format, models, and the files of models."""
