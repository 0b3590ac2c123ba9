"""What the devices did, whatever the host did meanwhile."""
