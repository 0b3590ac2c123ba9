"""What was computed or converted once is kept in the user's cache folder, and made again if lost.

Nothing in it is needed, and nothing in it is believed: an entry that was damaged, or that another
user could have written, is as if it were not there.
"""

from __future__ import annotations
