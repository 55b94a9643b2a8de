"""Tools as a model sees them: declarations, choice, earlier calls and their results."""
