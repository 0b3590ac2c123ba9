"""The strings of an export and their ids, which are sparse as in genuine ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scripts.nsys_export.kernels import Kernel
from scripts.nsys_export.step import Label, Step

__all__ = ["Strings", "strings_of"]

_FIRST_API = 71_100
_FIRST_RANGE = 129_600
_FIRST_KERNEL = 1_364_200


@dataclass
class Strings:
    """Text by id, and for each operation and range of a step the id of its name."""

    texts: dict[int, str] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)

    def id_of(self, text: str, first: int = 66) -> int:
        """Return the id of ``text``; a new one is at or behind ``first``."""
        if text not in self._ids:
            place = first
            while place in self.texts:
                place += 3
            self._ids[text] = place
            self.texts[place] = text
        return self._ids[text]

    def of_kernels(self, kernels: list[Kernel]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the three names of each kernel, by column of the kernel table."""
        names = {
            "demangledName": [kernel.demangled for kernel in kernels],
            "shortName": [kernel.short for kernel in kernels],
            "mangledName": [kernel.mangled for kernel in kernels],
        }
        return {
            column: np.array([self.id_of(text, _FIRST_KERNEL) for text in texts], np.int64)
            for column, texts in names.items()
        }

    def of_api(self, step: Step) -> npt.NDArray[np.int64]:
        """Return the name of the API call of each operation."""
        names = [operation.api for operation in step.operations]
        return np.array([self.id_of(name, _FIRST_API) for name in names], np.int64)

    def of_range(self, name: str) -> int:
        """Return the id of a registered name of a range."""
        return self.id_of(name, _FIRST_RANGE)


def strings_of(step: Step) -> Strings:
    """Return all strings that an export of such steps holds."""
    strings = Strings()
    for text in ("", "[NSys]", "python3", "pt_autograd_0", "CUPTI worker th", "cuda-EvtHandlr"):
        strings.id_of(text)
    strings.of_api(step)
    strings.of_kernels([one.kernel for one in step.operations if one.kernel is not None])
    for label in (Label.REGISTERED, Label.NUMBERED):  # the latter are operators, too
        for one in step.ranges:
            if one.label is label:
                strings.of_range(one.name)
    return strings
