"""Hardware limits: peaks of GPUs and links, and resources of a multiprocessor."""
