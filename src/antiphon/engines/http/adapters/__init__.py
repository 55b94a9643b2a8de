"""One adapter per engine server: its endpoints, probes and deviations."""
