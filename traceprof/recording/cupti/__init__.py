"""Record GPU activity with CUPTI: a C library loaded into the program, and its files."""
