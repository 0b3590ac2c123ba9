"""Start-up file that `traceprof record` puts first on PYTHONPATH of the recorded program.

Every Python that the program starts runs it, also Python 2.7. It records in Python 3.8 and later,
imports almost nothing, and does nothing in older ones. It hides any other sitecustomize on the
path, so it runs that file at the end.
"""

import os
import sys


def _run_hidden_sitecustomize():
    """Run the sitecustomize that this file hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if sys.version_info < (3, 5):
        _run_hidden_in_old_python(others)
        return
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    ours = sys.modules.get("sitecustomize")
    hidden = module_from_spec(spec)
    sys.modules["sitecustomize"] = hidden
    try:
        spec.loader.exec_module(hidden)
    except BaseException:
        sys.modules["sitecustomize"] = ours
        raise


def _run_hidden_in_old_python(folders):
    """Run the sitecustomize in ``folders`` with `imp`: Python 2.7 has no module specs."""
    import imp

    try:
        found = imp.find_module("sitecustomize", folders)
    except ImportError:
        return
    try:
        imp.load_module("sitecustomize", *found)
    finally:
        if found[0]:
            found[0].close()


def _install_hooks(torch):
    """Install the hooks, once the program has imported torch."""
    if not hasattr(torch, "__version__"):
        found = (os.getpid(), getattr(torch, "__file__", "a module torch"))
        sys.stderr.write("traceprof: process %d imported %s, which is not PyTorch\n" % found)
        return
    from _traceprof_runtime import install  # programs without torch do not wait for this

    install.install_hooks(torch)


def _note_without_torch():
    """Note at exit which other libraries the program used, if it never imported torch."""
    if "_traceprof_runtime.process_record" not in sys.modules:
        from _traceprof_runtime.after_import import note_without_torch

        note_without_torch()


try:
    if os.environ.get("TRACEPROF_DIR") and sys.version_info >= (3, 8):
        import atexit

        from _traceprof_runtime.after_import import call_after_import

        call_after_import("torch", _install_hooks)
        if os.environ.get("TRACEPROF_CUPTI"):
            from _traceprof_runtime.after_import import offer_cupti

            offer_cupti()
        atexit.register(_note_without_torch)
except Exception as error:
    sys.stderr.write("traceprof: no recording in process %d: %r\n" % (os.getpid(), error))
_run_hidden_sitecustomize()
