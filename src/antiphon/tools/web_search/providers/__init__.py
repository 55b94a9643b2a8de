"""Search providers: one file per kind of service, and an entry in the registry."""
