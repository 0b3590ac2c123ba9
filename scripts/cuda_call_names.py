"""Write the tables of CUDA call numbers that nvprof's files use, as libcupti names them.

python scripts/cuda_call_names.py /usr/lib/x86_64-linux-gnu/libcupti.so.11.8
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from traceprof.formats.shared.cupti import plain_api_name

FOLDER = Path(__file__).resolve().parent.parent / "traceprof" / "formats" / "nvprof"
DOMAINS = {"driver": 1, "runtime": 2}


def main(library: str) -> None:
    cupti = ctypes.CDLL(library)
    for domain, code in DOMAINS.items():
        lines = []
        while name := _name(cupti, code, len(lines) + 1):
            lines.append(plain_api_name(name))
        path = FOLDER / f"cuda_{domain}_calls.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(lines)} calls")


def _name(cupti: ctypes.CDLL, domain: int, number: int) -> str:
    found = ctypes.c_char_p()
    failed = cupti.cuptiGetCallbackName(domain, number, ctypes.byref(found))
    return "" if failed or not found.value else found.value.decode()


if __name__ == "__main__":
    main(sys.argv[1])
