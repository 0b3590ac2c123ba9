"""An allocator as PyTorch's is, as far as its snapshots go."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

ROUND = 512
USER = "/home/me/train.py"
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


def forward(line: int, module: str = "linear") -> list[dict[str, Any]]:
    """Return the frames of an operator of the forward pass, as Python tells them."""
    return [
        frame(f"{TORCH}/nn/modules/{module}.py", 134, "forward"),
        frame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl"),
        frame(USER, line, "train"),
    ]


def backward(node: str) -> list[dict[str, Any]]:
    """Return the frames of a thread of autograd, which C++ alone tells."""
    return [
        frame("??", 0, "at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&)"),
        frame("??", 0, f"torch::autograd::generated::{node}::apply(std::vector<at::Tensor>&&)"),
        frame("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<int>&)"),
    ]


def optimizer(line: int) -> list[dict[str, Any]]:
    """Return the frames of a step of an optimizer."""
    return [frame(f"{TORCH}/optim/adamw.py", 200, "step"), frame(USER, line, "train")]


class Allocator:
    """Hands out addresses and keeps the history; every event takes a microsecond."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.trace: list[dict[str, Any]] = []
        self.blocks: dict[int, dict[str, Any]] = {}
        self.spans: list[dict[str, Any]] = []
        self._free: dict[int, list[int]] = {}
        self._next = 1 << 40
        self.is_recording = True

    def alloc(self, size: int, frames: list[dict[str, Any]] | None = None) -> int:
        """Return the address of so many bytes: one that was freed, where one of its size was."""
        rounded = -(-size // ROUND) * ROUND
        again = self._free.get(rounded)
        address = again.pop() if again else self._next
        if address == self._next:
            self._next += rounded
            self._note("segment_alloc", address, rounded, frames)
        state = {"size": rounded, "requested_size": size, "state": "active_allocated"}
        self.blocks[address] = {"address": address, "frames": frames or [], **state}
        self._note("alloc", address, size, frames)
        return address

    def free(self, address: int) -> None:
        """Take back what lies at an address."""
        block = self.blocks[address]
        block["state"] = "inactive"
        for action in ("free_requested", "free_completed"):
            self._note(action, address, block["requested_size"], [])
        self._free.setdefault(block["size"], []).append(address)

    def fail(self, size: int, left: int) -> None:
        """Run out of memory."""
        self._note("oom", left, size, forward(9), addr=None, device_free=left)

    def step(self, name: str = "Optimizer.step#AdamW.step") -> None:
        """Begin and end a step of an optimizer."""
        for stage in ("START", "END"):
            self.now_us += 1
            self.spans.append({"stage": stage, "name": name, "device": 0, "time_us": self.now_us})

    def snapshot(self, **more: Any) -> dict[str, Any]:
        """Return what torch would write."""
        segments = [
            {
                "device": 0,
                "address": address,
                "total_size": block["size"],
                "segment_type": "large",
                "blocks": [block],
            }
            for address, block in self.blocks.items()
        ]
        return {
            "segments": segments,
            "device_traces": [self.trace],
            "external_annotations": self.spans,
            "allocator_settings": {},
            **more,
        }

    def write(self, path: Path, **more: Any) -> Path:
        """Write a snapshot."""
        path.write_bytes(pickle.dumps(self.snapshot(**more), protocol=4))
        return path

    def _note(
        self, action: str, address: int, size: int, frames: list[dict[str, Any]] | None, **more: Any
    ) -> None:
        self.now_us += 1
        if self.is_recording:
            told = {"action": action, "addr": address, "size": size, "stream": 0}
            told |= {"time_us": self.now_us, "frames": frames or []} | more
            self.trace.append({key: value for key, value in told.items() if value is not None})
