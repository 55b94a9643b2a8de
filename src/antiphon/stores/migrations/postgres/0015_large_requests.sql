-- For SQLite only: PostgreSQL does not rewrite a large value if another column changes.
SELECT 1;
