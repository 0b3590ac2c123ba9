"""What programs print while they train, read as what is kept of a run."""
