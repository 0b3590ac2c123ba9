"""SQL about tables in memory: one SELECT, bounded in time and memory, that can do nothing else."""
