"""The user's cache folder for computed or converted data, which is recreated if lost.

The cache is optional and untrusted: a damaged entry, or one that another user could have written,
is ignored.
"""

from __future__ import annotations
