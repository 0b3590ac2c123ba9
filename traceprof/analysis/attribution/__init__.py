"""Which host range, phase or call stands behind what: what every breakdown shares."""
