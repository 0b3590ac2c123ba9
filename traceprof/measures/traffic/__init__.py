"""What moved: copies, links and their counters, messages between ranks."""
