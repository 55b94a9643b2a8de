"""The sans-IO core: history, deltas, events and the fold of a response. No await, no clock, no network."""
