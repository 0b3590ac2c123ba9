"""What the devices did: the five parts of their time, kernels, copies."""
