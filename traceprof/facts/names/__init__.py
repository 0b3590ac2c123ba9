"""What names tell: of ranges, phases, kernels, sizes."""
