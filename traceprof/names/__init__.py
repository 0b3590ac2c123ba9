"""What names tell: of kernels, of collectives and their sizes, of ranges."""
