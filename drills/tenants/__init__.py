"""Drills on the separation of tenants and on requests without a valid key."""
