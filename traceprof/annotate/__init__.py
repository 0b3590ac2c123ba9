"""Code that runs inside the recorded program: manual ranges (`api`) and hooks (`inject`)."""
