"""From what the recorded processes left in the work folder to one Trace."""
