"""Two replicas behind a proxy, which are killed and restarted together with their database."""
