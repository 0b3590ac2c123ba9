"""What is known of ranks only when they are held against each other."""
