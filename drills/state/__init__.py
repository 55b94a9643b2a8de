"""Drills on stored state: kill -9, zombies, replays, idempotency, failing stores and disconnects."""
