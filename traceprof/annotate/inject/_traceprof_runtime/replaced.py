"""Replaces attributes of torch and Python with hooks, and restores them when a recording ends.

A recording that `traceprof record` started lasts until its process ends. A recording that began
inside a program restores every attribute, because the program continues.
"""

_INHERITED = object()  # the attribute is inherited: it is not in the owner's __dict__
_replaced = []  # (owner, name, new value, previous value)
_restore_callbacks = []
at_restore = _restore_callbacks.append  # (function): called after all attributes are restored


def replace(owner, name, new):
    """Set an attribute of a module, class, or object to ``new``; remember its previous value."""
    _replaced.append((owner, name, new, vars(owner).get(name, _INHERITED)))
    setattr(owner, name, new)


def restore():
    """Restore all attributes, except those that other code has replaced since.

    A hook that stays does nothing: it first checks whether recording is on.
    """
    while _replaced:
        owner, name, new, before = _replaced.pop()
        if vars(owner).get(name) is not new:
            continue
        if before is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    while _restore_callbacks:
        _restore_callbacks.pop()()
