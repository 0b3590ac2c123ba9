"""What the time of devices and hosts is made of, down to kernels, copies, waits and causes."""
