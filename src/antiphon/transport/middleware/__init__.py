"""What every request passes: the application, authentication, rate limits, routing and headers."""
