"""Chrome traces of torch.profiler (Kineto)."""
