"""Kineto (torch.profiler) Chrome traces."""
