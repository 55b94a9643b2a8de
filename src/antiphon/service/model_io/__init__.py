"""Models: which engine serves a name, how a model is prompted, and how its output is read."""
