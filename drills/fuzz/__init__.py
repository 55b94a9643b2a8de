"""Requests that are nearly right: by mutation of what real clients sent, and by our own OpenAPI document."""
