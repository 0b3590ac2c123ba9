"""Records and events, against what TensorBoard makes of the same bytes."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event

from traceprof.export.tensorboard import crc32c, record, scalars_event, version_event

_INT64 = st.integers(-(2**63), 2**63 - 1)
_FLOATS = st.floats(allow_nan=False, width=32)


def test_the_checksum_is_that_of_its_standard() -> None:
    # RFC 3720, B.4, and the check value of the catalogue of CRCs.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


def test_a_record_is_length_data_and_their_masked_checksums() -> None:
    # The mask: rotated right by 15 bits, plus a constant.
    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return ((crc >> 15 | (crc & 0x7FFF) << 17) + 0xA282EAD8) % 2**32

    length, length_crc, data, data_crc = struct.unpack("<QI3sI", record(b"abc"))
    assert (length, data) == (3, b"abc")
    assert (length_crc, data_crc) == (masked(struct.pack("<Q", 3)), masked(b"abc"))


def test_a_file_begins_with_its_version() -> None:
    event = Event.FromString(version_event(1.5))
    assert (event.wall_time, event.file_version) == (1.5, "brain.Event:2")


@given(st.floats(allow_nan=False), _INT64, st.dictionaries(st.text("aé/_ ", max_size=200), _FLOATS))
def test_protobuf_reads_what_was_written(
    wall_time_s: float, step: int, values: dict[str, float]
) -> None:
    event = Event.FromString(scalars_event(wall_time_s, step, values))
    assert (event.wall_time, event.step) == (wall_time_s, step)
    assert {one.tag: one.simple_value for one in event.summary.value} == values
