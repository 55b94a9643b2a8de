"""Common parts of engines that run in child processes: supervision, wire format, models and their files."""
