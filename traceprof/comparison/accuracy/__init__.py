"""How long runs take until they are good enough: time, steps, epochs and samples to a target."""
