"""Store operations as generators of SQL statements, written once for SQLite and PostgreSQL."""
