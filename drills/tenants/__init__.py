"""Drills on the isolation of tenants and on requests without a valid key."""
