"""Find the files of a run, determine the rank of each, and open them."""
