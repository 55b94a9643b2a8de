"""Access control: API keys, rate limits, load shedding and service tiers."""
