"""Facts about this machine: processor, memory, network, GPUs, MPI, the code's commit."""
