"""Waiting for the program to import torch; costs next to nothing where it never does."""

import os
import sys


def watch_for_torch():
    """Install the hooks as soon as the program has imported torch."""
    sys.meta_path.insert(0, _TorchFinder())


def complain(what, error):
    """Say in one line that something is not recorded; the program goes on."""
    sys.stderr.write("traceprof: %s in process %d: %r\n" % (what, os.getpid(), error))
    if os.environ.get("TRACEPROF_DEBUG"):
        import traceback

        traceback.print_exc()


class _TorchFinder:
    """Finds torch as the others would, once, and wraps its loader."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _HookingLoader(spec.loader)
                return spec
        return None


class _HookingLoader:
    """Loads a module with its real loader and installs the hooks afterwards."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            from . import install

            install.install_hooks(module)
        except Exception as error:
            complain("not recording", error)
