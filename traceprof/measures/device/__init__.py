"""Activity, kernels, memory, and hardware peaks of the devices, independent of the host."""
