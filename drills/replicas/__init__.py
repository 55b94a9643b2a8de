"""Two replicas behind a proxy that die and come back, and a database that does."""
