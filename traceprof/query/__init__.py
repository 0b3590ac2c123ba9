"""SQL over in-memory tables: one read-only SELECT, limited in time and memory."""
