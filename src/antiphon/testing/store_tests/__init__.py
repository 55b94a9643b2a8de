"""Contract of stores: the tests of `StoreContract`, by subject."""
