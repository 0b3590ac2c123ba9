"""What is too short for a bar of its own: one strip of pixels per line, by exact occupancy."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traceprof.render.timeline.channels import Channel

__all__ = ["busy_ratios", "png_data_url", "state_strip", "strip"]

Pixels = npt.NDArray[np.uint8]
Ratios = npt.NDArray[np.float64]
_FAINTEST = 70


def busy_ratios(channel: Channel, t0: int, t1: int, n_bins: int) -> Ratios:
    """Return the exact share of each of ``n_bins`` equal parts of ``[t0, t1)`` that is busy."""
    edges = t0 + np.arange(n_bins + 1) * ((t1 - t0) / n_bins)
    busy_until = np.concatenate(([0], np.cumsum(channel.ends - channel.starts)))
    started = np.searchsorted(channel.starts, np.ceil(edges).astype(np.int64), side="left")
    last = np.maximum(started - 1, 0)
    cut = np.maximum(channel.ends[last] - edges, 0) if len(channel) else np.zeros(len(edges))
    before = np.where(started > 0, busy_until[started] - cut, 0.0)
    ratios: Ratios = np.diff(before) / ((t1 - t0) / n_bins)
    return ratios


def _holds_start(channel: Channel, t0: int, t1: int, n_bins: int) -> npt.NDArray[np.bool_]:
    bins = ((channel.starts - t0) * n_bins) // max(1, t1 - t0)
    found = np.zeros(n_bins, bool)
    found[bins[(bins >= 0) & (bins < n_bins)]] = True
    return found


def strip(layers: Sequence[tuple[Channel, str]], window: tuple[int, int], n_bins: int) -> Pixels:
    """Return ``n_bins`` RGBA pixels: the colour of the busiest layer, as strong as all are busy.

    ``layers`` are channels without what is drawn as bars, each with its colour ("#rrggbb"). A bin
    in which anything starts stays visible.
    """
    pixels = np.zeros((n_bins, 4), np.uint8)
    best, total = np.zeros(n_bins), np.zeros(n_bins)
    for channel, colour in layers:
        if len(channel) == 0:
            continue
        ratios = busy_ratios(channel, *window, n_bins)
        wins = (ratios > best) | (_holds_start(channel, *window, n_bins) & (best == 0))
        pixels[wins, :3] = _rgb(colour)
        pixels[wins, 3] = _FAINTEST
        best = np.maximum(best, ratios)
        total += ratios
    shown = pixels[:, 3] > 0
    strength = _FAINTEST + (255 - _FAINTEST) * np.sqrt(np.clip(total, 0, 1))
    pixels[shown, 3] = strength[shown].astype(np.uint8)
    return pixels


def state_strip(
    layers: Sequence[tuple[Channel, str]], window: tuple[int, int], size: tuple[int, int]
) -> Pixels:
    """Return (height, n_bins) RGBA pixels: the states of a device, stacked in each bin."""
    n_bins, height = size
    pixels = np.zeros((height, n_bins, 4), np.uint8)
    below = np.zeros(n_bins)
    level = (np.arange(height)[::-1, None] + 0.5) / height
    for channel, colour in layers:
        above = below + busy_ratios(channel, *window, n_bins)
        pixels[(level >= below) & (level < above)] = (*_rgb(colour), 255)
        below = above
    return pixels


def png_data_url(pixels: Pixels) -> str:
    """Return (height, width, 4) pixels as the address of a PNG."""
    height, width, _ = pixels.shape
    raw = np.zeros((height, width * 4 + 1), np.uint8)
    raw[:, 1:] = pixels.reshape(height, width * 4)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", head),
            (b"IDAT", zlib.compress(raw.tobytes(), 6)),
            (b"IEND", b""),
        )
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
