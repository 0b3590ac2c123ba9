"""Names of Python functions in a stack: "train.py(88): evaluate", or "<built-in function sleep>".

A function belongs to the program unless its file belongs to Python, to PyTorch, or to a library
that runs the program. Files of other libraries count as the program: they show what it called.
"""

from __future__ import annotations

import re
from typing import Final

_ADDRESS: Final = re.compile(r" (object )?at 0x[0-9a-fA-F]+")
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_PYTHON: Final = re.compile(r"/lib(64)?/python3[.\d]*/")
LIBRARIES: Final = re.compile(
    r"torch|functorch|triton|numpy|IPython|ipykernel|traitlets|tornado|pluggy|_pytest|debugpy|"
    r"pydevd|abc|argparse|ast|asyncio|bdb|bisect|codecs|collections|concurrent|contextlib|"
    r"contextvars|copy|copyreg|csv|ctypes|dataclasses|datetime|decimal|encodings|enum|"
    r"functools|genericpath|getpass|gzip|hashlib|heapq|http|importlib|inspect|io|ipaddress|"
    r"json|linecache|locale|logging|lzma|multiprocessing|numbers|ntpath|opcode|operator|os|"
    r"pathlib|pdb|pickle|pkgutil|posixpath|pprint|queue|random|re|reprlib|runpy|sched|"
    r"selectors|shlex|shutil|signal|socket|socketserver|sre_parse|ssl|stat|string|struct|"
    r"subprocess|sysconfig|tarfile|tempfile|textwrap|threading|tokenize|traceback|tracemalloc|"
    r"typing|unittest|urllib|uuid|warnings|weakref|zipfile|zipimport|zoneinfo"
)
"""Packages and modules by which a function of the program is called, or which it calls."""
_CALLED: Final = re.compile(r"<(?:built-in (?:method|function)|method) '?(\w{1,64})")
_WAITS: Final = frozenset(
    ("acquire", "wait", "select", "poll", "epoll", "recv", "recv_into", "accept", "waitpid")
)
_QUEUE_WAITS: Final = _WAITS | {"get", "join", "recv_bytes"}
"""Functions that wait in modules of threads and queues; dictionaries and texts have others."""
_SIMPLE_QUEUE: Final = "_queue.SimpleQueue"
_OF_WAITING: Final = frozenset(("threading", "queue", "selectors", "multiprocessing", "concurrent"))
_SLEEP: Final = "sleep"


def plain_function(name: str) -> str:
    """Return the name without addresses, and without the folder of installed packages."""
    file, bracket, function = _ADDRESS.sub("", name).rpartition("(")
    for folder in _INSTALLED:
        file = file.rpartition(folder)[2]
    if found := _PYTHON.search(file):
        file = file[found.end() :]
    return file + bracket + function


def is_function(name: str) -> bool:
    """Return whether a name is that of a Python function with a file and a line."""
    return _module_of(name) != ""


def is_of_program(name: str) -> bool:
    """Return whether a plain name is that of a function of the program."""
    module = _module_of(name)
    return module != "" and LIBRARIES.fullmatch(module) is None


def is_script(name: str) -> bool:
    """Return whether a function is the code of a file outside any function."""
    return name.endswith(": <module>")


def waits(name: str) -> bool:
    """Return whether a thread in this function waits for another thread, or for a message."""
    called = _CALLED.match(name)
    if called is not None:
        return called[1] in (_QUEUE_WAITS if _SIMPLE_QUEUE in name else _WAITS)
    return _module_of(name) in _OF_WAITING and name.rpartition(": ")[2] in _QUEUE_WAITS


def sleeps(name: str) -> bool:
    """Return whether a thread in this function sleeps for a time that the program chose."""
    called = _CALLED.match(name)
    return called is not None and called[1] == _SLEEP


def _module_of(name: str) -> str:
    """Return the first folder of the file, or the file without ".py"; "" if the name has none."""
    file, _, rest = name.rpartition("(")
    line, found, _ = rest.partition("): ")
    if not found or not line.isdecimal() or name.startswith("<"):
        return ""
    return file.split("/", 1)[0].removesuffix(".py") or "/"
