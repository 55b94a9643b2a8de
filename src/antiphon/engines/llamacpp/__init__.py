"""The embedded engine: llama.cpp in a supervised child process."""
