"""Drills on stored state: SIGKILL, paused servers, replays, idempotency, failing stores and disconnects."""
