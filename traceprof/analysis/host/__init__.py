"""What the host did: ranges, operators, launches, synchronisation."""
