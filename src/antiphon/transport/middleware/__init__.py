"""Processing that applies to every request: the application, authentication, rate limits, routing and headers."""
