"""What to make of it all: findings, critical path, what-if, quality."""
