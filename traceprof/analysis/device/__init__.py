"""What the devices did: work, copies, memory, idleness."""
