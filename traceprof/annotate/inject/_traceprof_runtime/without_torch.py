"""What a Python program leaves that imported no torch and named nothing: that it was there."""

import os
import sys

_OTHERS = ("jax", "tensorflow", "mlx", "paddle", "mxnet", "cupy", "numba")


def note_end():
    """Leave the names of the libraries that compute instead, a line each, as this process ends."""
    folder = os.environ.get("TRACEPROF_DIR", "")
    try:
        with open(os.path.join(folder, "python.%d" % os.getpid()), "w") as file:
            file.writelines(name + "\n" for name in _OTHERS if name in sys.modules)
    except OSError:
        pass  # the recorder is gone
