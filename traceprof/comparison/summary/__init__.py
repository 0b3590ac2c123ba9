"""What is kept of a run: its traces, made into a `Summary` of a few hundred kB."""
