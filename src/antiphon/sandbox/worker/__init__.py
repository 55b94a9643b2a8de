"""The sandbox process: a program of its own that imports the standard library only and runs without secrets."""
