"""History to prompt: the only place where items become chat messages, template text or Harmony tokens."""
