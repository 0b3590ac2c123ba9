"""What devices did: their times and parts, their work with its launches."""
