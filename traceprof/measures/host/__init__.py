"""What the host did: launches, phases, ranges, operators, layers."""
