"""Runs an action once the program has imported a module, and notes programs without torch."""

import os
import sys

from .replaced import at_restore

_OTHER_LIBRARIES = ("jax", "tensorflow", "mlx", "paddle", "mxnet", "cupy", "numba")


def call_after_import(name, action):
    """Call ``action(module)`` as soon as the program has imported the module ``name``."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        finder = _Finder(name, action)
        sys.meta_path.insert(0, finder)
        at_restore(finder.remove)


def complain(what, error):
    """Report in one line on stderr that something is not recorded; the program continues."""
    sys.stderr.write("traceprof: %s in process %d: %r\n" % (what, os.getpid(), error))
    if os.environ.get("TRACEPROF_DEBUG"):
        import traceback

        traceback.print_exc()


def offer_cupti():
    """Put the libcupti files of this Python's packages into TRACEPROF_CUPTI_LIBRARIES.

    The recorder's C library selects one of them.
    """
    found = []
    for packages_folder in filter(os.path.isdir, sys.path):
        nvidia = os.path.join(packages_folder, "nvidia")
        folders = [os.path.join(packages_folder, "torch", "lib")]
        if os.path.isdir(nvidia):
            folders += [os.path.join(nvidia, package, "lib") for package in os.listdir(nvidia)]
        for folder in filter(os.path.isdir, folders):
            found += [
                os.path.join(folder, name)
                for name in os.listdir(folder)
                if name.startswith("libcupti")
            ]
    if found:
        os.environ["TRACEPROF_CUPTI_LIBRARIES"] = os.pathsep.join(sorted(found, reverse=True))


def note_without_torch():
    """Write the names of the imported compute libraries to a file, one a line, at exit."""
    from .identity import identity

    folder = os.environ.get("TRACEPROF_DIR", "")
    try:
        with open(os.path.join(folder, "python." + identity()), "w") as file:
            file.writelines(name + "\n" for name in _OTHER_LIBRARIES if name in sys.modules)
    except OSError:
        pass  # the recorder is gone


class _Finder:
    """Finds one module through the other finders, once, and wraps its loader."""

    def __init__(self, name, action):
        self._name = name
        self._action = action

    def find_spec(self, name, path=None, target=None):
        """Return the spec of the module from the other finders, with a wrapped loader."""
        if name != self._name:
            return None
        self.remove()
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._action)
                return spec
        return None

    def remove(self):
        """Remove this finder from ``sys.meta_path``."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader:
    """Loads a module with its original loader, then calls the action."""

    def __init__(self, loader, action):
        self._loader = loader
        self._action = action

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._action(module)
        except Exception as error:
            complain("no recording", error)

    # Python removes the frames of importlib from the traceback of a failed import, and with this
    # file name also ours: the program prints the same traceback as without traceprof.
    exec_module.__code__ = exec_module.__code__.replace(
        co_filename="<frozen importlib._bootstrap_external>"
    )
