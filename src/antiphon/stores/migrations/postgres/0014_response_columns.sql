-- For SQLite only: PostgreSQL stores large values apart from their row.
SELECT 1;
