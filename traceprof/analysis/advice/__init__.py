"""What to make of it all: findings, verdict, critical path, what-if, quality."""
