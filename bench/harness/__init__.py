"""Shared parts of the benchmarks: load generators, servers under measurement, meters and tables."""
