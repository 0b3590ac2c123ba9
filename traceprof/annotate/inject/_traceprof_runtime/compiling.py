"""Whether torch.compile is tracing; a hook must then behave as if it were not there."""

from .after_import import call_after_import


def get_is_compiling(torch):
    """Return torch's own test, or for versions without one (before 2.3) an equivalent."""
    test = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if test is not None:
        return test
    call_after_import("torch._dynamo.external_utils", _take_test)
    return _is_compiling


def _take_test(module):
    global _test
    _test = module.is_compiling


def _test():
    """Stand in for the compiler's test: where it has not been imported, nothing compiles."""
    return False


def _is_compiling():
    # No branch here: the compiler knows its own test and folds it, but refuses conditions on
    # anything that it does not know.
    return _test()
