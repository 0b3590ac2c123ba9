"""NVTX payloads in an nsys export: JSON text, or bytes that a schema in the file describes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from traceprof.formats.sqlite.database import Database
from traceprof.values import dataclass

__all__ = ["PayloadSchemas", "read_schemas"]

_HEADER: Final = struct.Struct("<IIIIQQ")
"""Domain, reserved, schema, reserved, size of the payload, size of all."""

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
    """What payloads consist of: (domain, schema) → (field, offset in bytes, code of `struct`).

    Schemas are numbered within a domain.
    """

    fields: Mapping[tuple[int, int], tuple[tuple[str, int, str], ...]]

    def decode(self, text: str | None, blob: bytes | None) -> dict[str, Any]:
        """Return the fields of a payload; none where it cannot be decoded."""
        if text:
            try:
                return dict(_leaves(json.loads(text)))
            except (ValueError, RecursionError):
                return {}
        return self._decode_blob(blob) if blob else {}

    def _decode_blob(self, blob: bytes) -> dict[str, Any]:
        if len(blob) <= _HEADER.size:
            return {}
        domain, _, schema, *_ = _HEADER.unpack_from(blob)
        payload = blob[_HEADER.size :]
        return {
            name: struct.unpack_from(code, payload, offset)[0]
            for name, offset, code in self.fields.get((domain, schema), ())
            if offset + struct.calcsize(code) <= len(payload)
        }


def read_schemas(database: Database) -> PayloadSchemas:
    """Return the schemas of payloads that the export describes."""
    wanted = {"domainId", "schemaId", "idx", "type", "name", "offset"}
    if not wanted <= database.columns("NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        return PayloadSchemas({})
    rows = database.rows(
        "SELECT DISTINCT domainId, schemaId, idx, CAST(type AS INTEGER), name, "
        "max(0, coalesce(CAST([offset] AS INTEGER), 0)) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES "
        "WHERE type IS NOT NULL AND name IS NOT NULL ORDER BY domainId, schemaId, idx"
    )
    fields: dict[tuple[int, int], tuple[tuple[str, int, str], ...]] = {}
    for domain, schema, _, kind, name, offset in rows:
        code = "<I" if kind >= _FIRST_CUSTOM_TYPE else _CODES.get(kind)
        if code is not None:
            known = fields.get((domain, schema), ())
            fields[domain, schema] = (*known, (str(name), offset, code))
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
