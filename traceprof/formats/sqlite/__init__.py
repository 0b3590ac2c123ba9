"""SQLite files as columns: opened, read, surveyed, copied in part."""
