"""Start-up file that `traceprof record` puts first on PYTHONPATH of the recorded program.

It works in any Python from 3.8 on, imports next to nothing, and then runs the sitecustomize
that it hides, if there is one.
"""

import os
import sys


def _run_hidden_sitecustomize():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
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


def _install_hooks(torch):
    from _traceprof_runtime import install  # programs without torch do not wait for this

    install.install_hooks(torch)


def _note_without_torch():
    if "_traceprof_runtime.process_record" not in sys.modules:
        from _traceprof_runtime.after_import import note_without_torch

        note_without_torch()


try:
    if os.environ.get("TRACEPROF_DIR"):
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
