"""The operations of a store as generators of SQL statements, written once for both databases."""
