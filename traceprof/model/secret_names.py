"""Names that stand for secrets, by their words; and values that look like one.

The hooks load this file, too, in the program's own Python: from 3.8 on, without traceprof.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_plainly_secret", "looks_random", "names_secret"]

_WORDS: Final = frozenset(
    {"auth", "authentication", "authorization", "bearer", "cookie", "credential", "credentials"}
    | {"creds", "dsn", "jwt", "key", "license", "mfa", "oauth", "otp", "pass", "passcode"}
    | {"passphrase", "passwd", "password", "pat", "psk", "pswd", "pw", "pwd", "sas", "secret"}
    | {"secrets", "sid", "sig", "signature", "tkn", "token", "totp", "webhook"}
)
_ALSO_OF_MODELS: Final = frozenset({"token", "key"})
_ENDS: Final = (
    *("apikey", "accesskey", "secretkey", "privatekey", "sharedkey", "signingkey", "accountkey"),
    *("authkey", "encryptionkey", "passkey", "hfkey", "wandbkey", "cometkey", "subscriptionkey"),
    *("accesstoken", "apitoken", "authtoken", "bottoken", "hftoken", "hubtoken", "idtoken"),
    *("refreshtoken", "securitytoken", "sessiontoken", "wandbtoken", "githubtoken"),
    *("clientsecret", "sharedsecret", "passwd", "password", "passphrase", "authorization"),
    *("userpwd", "passwrd", "otlpheaders", "tracesheaders", "metricsheaders", "logsheaders"),
)
_ENDS_OF_SEVERAL: Final = tuple(f"{end}s" for end in _ENDS)
_PLAIN: Final = frozenset({"authorization", "passphrase", "passwd", "password", "pswd", "secret"})
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SMALL: Final = re.compile(r"-?\d{1,8}(?:\.\d*)?")
_RANDOM: Final = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[\w\-+=~!$^*]{8,}")


def names_secret(name: str, value: str = "") -> bool:
    """Return whether a whole word of ``name`` stands for a secret ("num-keys" does not).

    Models have tokens and keys, too: small numbers (``--pad-token 0``) are none.
    """
    words = _words_of(name)
    told = _WORDS.intersection(words)
    if told <= _ALSO_OF_MODELS and _SMALL.fullmatch(value):
        return False
    return bool(told) or _ends(words)


def is_plainly_secret(name: str) -> bool:
    """Return whether ``name`` stands for a secret whatever it is the name of."""
    words = _words_of(name)
    return bool(_PLAIN.intersection(words)) or _ends(words)


def looks_random(value: str) -> bool:
    """Return whether ``value`` may have been drawn: letters and digits, and no place of a file."""
    return bool(_RANDOM.fullmatch(value))


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _ends(words: list[str]) -> bool:
    joined = (*words, "".join(words[-2:]))
    return any(word.endswith((*_ENDS, *_ENDS_OF_SEVERAL)) for word in joined)
