"""What the host did: operators and ranges."""
