"""The class of each kernel, by its name: the user's rules, its identifier, its functor, its scope.

In this order, the first that tells it:

1. the user's rules, sought in the whole name as it is shown;
2. of a wrapper (`WRAPPERS`) the functors, outermost first, else the class of the wrapper;
3. the few namespaces that decide whatever the identifier says (`DECIDING_SCOPES`);
4. the words of the identifier;
5. the namespaces that decide where it does not (`SCOPES`);
6. ``other``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from traceprof.model.activity import Activity
from traceprof.model.kernel_names.parsing import KernelName, parse_name, words_of
from traceprof.model.kernel_names.rules import (
    DECIDING_SCOPES,
    IDENTIFIERS,
    SCOPES,
    WRAPPERS,
    Pattern,
    Wrapper,
)
from traceprof.model.kernel_names.user_rules import Rule

__all__ = ["class_of", "classify"]


def classify(names: pd.Categorical, rules: Sequence[Rule] = ()) -> pd.Categorical:
    """Return the activity of each kernel, ``rules`` first; one look per distinct name."""
    found = [class_of(str(name), rules).value for name in names.categories]
    distinct = sorted(set(found))
    place = {activity: code for code, activity in enumerate(distinct)}
    codes = np.array([place[activity] for activity in found], np.int64)
    return pd.Categorical.from_codes(
        codes[names.codes] if len(codes) else names.codes, pd.Index(distinct, dtype=object)
    )


def class_of(name: str, rules: Iterable[Rule] = ()) -> Activity:
    """Return what a kernel of this name does."""
    for rule in rules:
        if rule.pattern.search(name):
            return rule.activity
    return _class_of(parse_name(name))


def _class_of(name: KernelName) -> Activity:
    whole = f"{name.scope}::{name.identifier}" if name.scope else name.identifier
    for wrapper in WRAPPERS:
        if wrapper.expression.search(whole):
            return _applied(wrapper, name.functors)
    return (
        _first(DECIDING_SCOPES, name.scope)
        or _first(IDENTIFIERS, name.words)
        or _first(SCOPES, name.scope)
        or Activity.OTHER
    )


def _applied(wrapper: Wrapper, functors: Iterable[str]) -> Activity:
    patterns = [pattern for pattern in IDENTIFIERS if pattern.activity in wrapper.classes]
    words = (words_of(functor.rpartition("::")[2]) for functor in functors)
    return next(filter(None, (_first(patterns, own) for own in words)), wrapper.otherwise)


def _first(patterns: Iterable[Pattern], text: str) -> Activity | None:
    return next((p.activity for p in patterns if p.expression.search(text)), None)
