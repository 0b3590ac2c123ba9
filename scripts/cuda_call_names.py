"""Write the tables of CUDA call numbers of CUPTI, as libcupti names them.

A number keeps its meaning; newer libraries know more of them, and forget the names of old ones: the
first library that has a name for a number counts.

python scripts/cuda_call_names.py libcupti.so.11.8 site-packages/nvidia/cu13/lib/libcupti.so.13
"""

from __future__ import annotations

import ctypes
import re
import sys
from itertools import zip_longest
from pathlib import Path

from traceprof.formats.shared.cupti import plain_api_name

FOLDER = Path(__file__).resolve().parent.parent / "traceprof" / "formats" / "shared"
DOMAINS = {"driver": 1, "runtime": 2}
NO_NAME = re.compile(r"cuda\d+")


def main(libraries: list[str]) -> None:
    for domain, code in DOMAINS.items():
        each = [_names(ctypes.CDLL(library), code) for library in libraries]
        lines = [
            next((name for name in told if name and not NO_NAME.fullmatch(name)), told[-1] or "")
            for told in zip_longest(*each)
        ]
        path = FOLDER / f"cuda_{domain}_calls.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(lines)} calls")


def _names(cupti: ctypes.CDLL, domain: int) -> list[str]:
    names: list[str] = []
    while name := _name(cupti, domain, len(names) + 1):
        names.append(plain_api_name(name))
    return names


def _name(cupti: ctypes.CDLL, domain: int, number: int) -> str:
    found = ctypes.c_char_p()
    failed = cupti.cuptiGetCallbackName(domain, number, ctypes.byref(found))
    return "" if failed or not found.value else found.value.decode()


if __name__ == "__main__":
    main(sys.argv[1:])
