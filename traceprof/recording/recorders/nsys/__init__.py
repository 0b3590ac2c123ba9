"""Record with NVIDIA Nsight Systems."""
