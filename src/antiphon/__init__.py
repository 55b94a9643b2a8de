"""A server that gives any language model the OpenAI Responses API."""
