"""What stands in the place of something of torch's, and how it goes when a recording ends.

A recording that `traceprof record` made lasts as long as its process. One that began inside a
program, which goes on, leaves everything as it was.
"""

_NOT_ITS_OWN = object()  # the owner has it from its class, or from another one
_replaced = []  # (owner, name, what is there now, what was there before)
_afterwards = []
at_restore = _afterwards.append  # (function): it is called when all is as it was


def replace(owner, name, new):
    """Put ``new`` in the place of an attribute of a module, a class or an object."""
    _replaced.append((owner, name, new, vars(owner).get(name, _NOT_ITS_OWN)))
    setattr(owner, name, new)


def restore():
    """Put everything back, but for that above which somebody else has put something since.

    What stays does nothing: it asks whether recording is on.
    """
    while _replaced:
        owner, name, new, before = _replaced.pop()
        if vars(owner).get(name) is not new:
            continue
        if before is _NOT_ITS_OWN:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    while _afterwards:
        _afterwards.pop()()
