"""Detects torch.compile at work: while it traces, a hook must behave as if it were absent."""

import os
import sys
import types

from .after_import import call_after_import

_MAX_FRAMES = 8
_COMPILER_FOLDERS = tuple(os.path.join("torch", name, "") for name in ("_functorch", "_inductor"))


def get_is_compiling(torch):
    """Return torch's function `is_compiling`, or an equivalent for torch before 2.3."""
    test = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if test is not None:
        return test
    call_after_import("torch._dynamo.external_utils", _take_test)
    return _is_compiling


def is_tracing():
    """Return whether a compiler traces a graph; its computation is not work of the program."""
    guards = sys.modules.get("torch._guards")
    context = getattr(guards, "TracingContext", None)
    # Before torch 2.2, `get` returns None if nothing is traced.
    current = getattr(context, "try_get", None) or getattr(context, "get", None)
    return current is not None and current() is not None


def is_compiled_graph(module):
    """Return whether compiled code calls ``module`` as a part of the program's compiled graph.

    Graphs of the compiler are modules that run without gradients, even when the program trains.
    """
    if type(module).__module__ != "torch.fx.graph_module":
        return False
    frame = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if any(part in frame.f_code.co_filename for part in _COMPILER_FOLDERS):
            return True
        frame = frame.f_back
    return False


def skip_traceprof_frames():
    """Make torch.compile skip our frames, as it skips frames of torch.

    Otherwise it compiles our wrappers as functions of their own. In torch 2.1 it recompiles them
    for each graph until it gives up. It still traces the program's frames inside our frames.
    """
    call_after_import("torch._dynamo.eval_frame", _skip_codes)


def _skip_codes(eval_frame):
    """Skip the code of all our functions."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == __package__:
            for code in _find_codes(module, name):
                eval_frame.skip_code(code)


def _find_codes(owner, module_name):
    """Yield the code of all functions that module ``module_name`` defines in a module or class."""
    for value in vars(owner).values():
        if getattr(value, "__module__", None) != module_name:
            continue
        if isinstance(value, type):
            yield from _find_codes(value, module_name)
        elif isinstance(value, types.FunctionType):
            yield from _nested_codes(value.__code__)


def _nested_codes(code):
    """Yield ``code`` and the code of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_codes(constant)


def _take_test(module):
    global _test
    _test = module.is_compiling


def _test():
    """Replace the compiler's test until its module is imported: nothing compiles before that."""
    return False


def _is_compiling():
    # No branch here: the compiler folds its own test into a constant, but rejects conditions on
    # unknown values.
    return _test()
