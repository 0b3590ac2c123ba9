"""NVTX payloads in an nsys export: JSON text, or bytes that a schema in the file describes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from traceprof.formats.database import Database

__all__ = ["PayloadSchemas", "read_schemas"]

_HEADER_BYTES: Final = 32
_CODES: Final = {
    5: "<i",
    6: "<I",
    9: "<q",
    10: "<Q",
    15: "<i",
    16: "<I",
    17: "<q",
    18: "<Q",
    19: "<f",
    20: "<d",
    22: "<Q",
}
_FIRST_CUSTOM_TYPE: Final = 1 << 24  # an enumeration: 32 bits


@dataclass(frozen=True, slots=True)
class PayloadSchemas:
    """What the payloads consist of: schema → (field, offset in bytes, code of `struct`)."""

    fields: Mapping[int, tuple[tuple[str, int, str], ...]]

    def decode(self, text: str | None, blob: bytes | None) -> dict[str, Any]:
        """Return the fields of a payload; none where it cannot be decoded."""
        if text:
            try:
                return dict(_leaves(json.loads(text)))
            except ValueError:
                return {}
        return self._decode_blob(blob) if blob else {}

    def _decode_blob(self, blob: bytes) -> dict[str, Any]:
        """Decode bytes: a header that names the schema among its first words, then the fields."""
        if len(blob) <= _HEADER_BYTES:
            return {}
        words = struct.unpack_from("<4I", blob)
        schema = next((word for word in words if word in self.fields), None)
        if schema is None:
            return {}
        payload = blob[_HEADER_BYTES:]
        return {
            name: struct.unpack_from(code, payload, offset)[0]
            for name, offset, code in self.fields[schema]
            if offset + struct.calcsize(code) <= len(payload)
        }


def read_schemas(database: Database) -> PayloadSchemas:
    """Return the schemas of payloads that the export describes."""
    wanted = {"schemaId", "idx", "type", "name", "offset"}
    if not wanted <= database.columns("NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        return PayloadSchemas({})
    rows = database.rows(
        "SELECT DISTINCT schemaId, idx, type, name, offset FROM NVTX_PAYLOAD_SCHEMA_ENTRIES "
        "ORDER BY schemaId, idx"
    )
    fields: dict[int, tuple[tuple[str, int, str], ...]] = {}
    for schema, _, kind, name, offset in rows:
        code = "<I" if kind is not None and kind >= _FIRST_CUSTOM_TYPE else _CODES.get(kind)
        if code is not None and name:
            fields[schema] = (*fields.get(schema, ()), (str(name), offset or 0, code))
    return PayloadSchemas(fields)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the named values in nested JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name)
    elif name:
        yield name, value
