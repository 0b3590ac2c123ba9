"""What moved over links, by their counters."""
