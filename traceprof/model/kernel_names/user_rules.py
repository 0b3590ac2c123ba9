"""The user's own classes of kernels: regular expressions in a TOML file, tried first."""

from __future__ import annotations

import re
from typing import Final

from traceprof.errors import UsageError
from traceprof.model.activity import Activity
from traceprof.model.toml import parse_toml
from traceprof.values import dataclass

__all__ = ["Rule", "parse_rules"]

_FORMER: Final = {
    "indexing": Activity.SORT_INDEX,
    "sorting": Activity.SORT_INDEX,
    "random": Activity.RNG_DROPOUT,
    "other_compute": Activity.OTHER,
    "device_memory": Activity.MEMORY,
}
"""What classes were called before: rules that name them still hold."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Kernels whose name contains ``pattern`` do ``activity``."""

    activity: Activity
    pattern: re.Pattern[str]


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Return the user's rules in the TOML ``text``, in the order in which they stand there.

    The file holds, in the order of precedence::

        [[rule]]
        activity = "communication"
        pattern = "my_ring_kernel"

    Raises:
        UsageError: not TOML, an activity that does not exist, or a pattern that is not valid.
    """
    tables = parse_toml(text, "rules").get("rule", [])
    if not isinstance(tables, list):
        raise UsageError("rules: expected [[rule]] tables")
    return tuple(_parse_rule(table) for table in tables)


def _parse_rule(table: object) -> Rule:
    told = table if isinstance(table, dict) else {}
    if not all(isinstance(told.get(name), str) for name in ("activity", "pattern")):
        raise UsageError("rules: every [[rule]] needs an activity and a pattern")
    try:
        activity = _FORMER.get(told["activity"]) or Activity(told["activity"])
    except ValueError as error:
        known = ", ".join(activity.value for activity in Activity)
        raise UsageError(
            f"rules: unknown activity {told['activity']!r}: expected one of {known}"
        ) from error
    try:
        pattern = re.compile(told["pattern"], re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"rules: pattern {told['pattern']!r}: {error}") from error
    return Rule(activity, pattern)
