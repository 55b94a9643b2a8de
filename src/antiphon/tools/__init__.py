"""Tools that the server runs for a model."""
