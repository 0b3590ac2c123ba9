"""Traffic over links by their counters, beside the collectives that caused it."""
