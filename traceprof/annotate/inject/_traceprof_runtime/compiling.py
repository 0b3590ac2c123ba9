"""Whether torch.compile is tracing; a hook must then behave as if it were not there."""

import os
import sys
import types

from .after_import import call_after_import

_MANY_FRAMES = 8
_OF_COMPILERS = tuple(os.path.join("torch", name, "") for name in ("_functorch", "_inductor"))


def get_is_compiling(torch):
    """Return torch's own test, or for versions without one (before 2.3) an equivalent."""
    test = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if test is not None:
        return test
    call_after_import("torch._dynamo.external_utils", _take_test)
    return _is_compiling


def is_tracing():
    """Return whether a compiler traces a graph: what it computes then is no work of the program."""
    guards = sys.modules.get("torch._guards")
    context = getattr(guards, "TracingContext", None)
    # Before torch 2.2 it is `get` that returns None where nothing is traced.
    current = getattr(context, "try_get", None) or getattr(context, "get", None)
    return current is not None and current() is not None


def is_compiled_graph(module):
    """Return whether ``module`` is called by what a compiler has made of the program, as its part.

    Its graphs are modules, too, which run without gradients, whatever they compute.
    """
    if type(module).__module__ != "torch.fx.graph_module":
        return False
    frame = sys._getframe(2)
    for _ in range(_MANY_FRAMES):
        if frame is None:
            return False
        if any(part in frame.f_code.co_filename for part in _OF_COMPILERS):
            return True
        frame = frame.f_back
    return False


def skip_hook_frames():
    """Have torch.compile begin below our frames, as it begins below those of torch itself.

    Else it compiles our wrappers for themselves: in torch 2.1 anew for each graph that it has
    made, until it gives up. What it meets inside a frame of the program it still sees through.
    """
    call_after_import("torch._dynamo.eval_frame", _skip_all)


def _skip_all(eval_frame):
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == __package__:
            for code in _codes_in(module, name):
                eval_frame.skip_code(code)


def _codes_in(owner, module):
    """Yield the code of all functions of a module or class that ``module`` defines."""
    for value in vars(owner).values():
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            yield from _codes_in(value, module)
        elif isinstance(value, types.FunctionType):
            yield from _with_inner(value.__code__)


def _with_inner(code):
    """Yield ``code`` and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


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
