"""What the host did: calls, operators, ranges, waiting."""
