"""Encrypted reasoning and compactions, and cache salts that separate tenants."""
