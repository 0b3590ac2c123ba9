"""Whether torch.compile is tracing; a hook must then behave as if it were not there."""

import sys


def get_is_compiling(torch):
    """Return torch's own test, or for versions without one an equivalent."""
    test = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return test if test is not None else _is_compiling_before_2_3


def _is_compiling_before_2_3():
    dynamo = sys.modules.get("torch._dynamo.external_utils")
    return dynamo.is_compiling() if dynamo else False
