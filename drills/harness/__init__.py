"""Shared parts of the drills: server processes, clients, kill points, journals and the stream oracle."""
