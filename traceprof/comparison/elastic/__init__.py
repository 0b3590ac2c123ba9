"""What happened to a job whose ranks came and went, and what it cost."""
