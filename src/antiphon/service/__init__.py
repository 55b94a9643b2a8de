"""The API as plain async methods, without a transport."""
