"""What the devices did: the parts of their time, kernels, streams, memory."""
