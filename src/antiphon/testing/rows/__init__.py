"""Builders of rows for tests of stores."""
