"""Live event logs and shared rate limits across processes."""
