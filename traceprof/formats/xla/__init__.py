"""Traces of jax.profiler and TensorFlow: XPlane files, and the Chrome JSON made of them."""
