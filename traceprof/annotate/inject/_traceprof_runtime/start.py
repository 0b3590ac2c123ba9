"""Starting to record in a process, whatever asks for it first."""

from . import bounds, session


def start():
    """Switch recording on unless it is; return whether it was off."""
    if not session.begin():
        return False
    bounds.install()
    return True
