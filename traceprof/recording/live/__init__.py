"""Running programs: read their live status, and capture some of their steps on request."""
