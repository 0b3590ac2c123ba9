"""What the host was in while devices had nothing to do."""
