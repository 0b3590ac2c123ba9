"""What hardware can do at most: GPUs, links, limits of a multiprocessor."""
