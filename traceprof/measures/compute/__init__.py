"""FLOPs of operators and steps, rates compared with hardware peaks, and energy."""
