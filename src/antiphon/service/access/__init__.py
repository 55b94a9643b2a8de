"""Who may send a request and how many: API keys, rate limits, load shedding and service tiers."""
