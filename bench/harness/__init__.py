"""What the benchmarks share: load generators, servers under measurement, meters and tables."""
