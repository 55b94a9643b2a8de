-- The quota of a tenant is checked with every upload: this index has all that is counted and summed for it.
CREATE INDEX files_size ON files (tenant, bytes);
