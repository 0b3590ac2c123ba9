"""Recording under NVIDIA Nsight Systems."""
