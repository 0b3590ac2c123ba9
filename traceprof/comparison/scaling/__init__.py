"""How throughput grows with the number of devices, and where the rest was lost."""
