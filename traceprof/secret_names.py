"""Decide whether the name of an option, variable, header, or JSON key denotes a secret.

The hooks also load this file in the program's own Python: 3.8 or later, without traceprof.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_WORDS: Final = frozenset(
    {"auth", "authentication", "authorization", "bearer", "cookie", "credential", "credentials"}
    | {"creds", "dsn", "jwt", "key", "license", "mfa", "oauth", "otp", "pass", "passcode"}
    | {"passin", "passout", "passphrase", "passwd", "password", "pat", "psk", "pswd", "pw", "pwd"}
    | {"sas", "secret"}
    | {"secrets", "sid", "sig", "signature", "tkn", "token", "totp", "webhook"}
)
_ALSO_OF_MODELS: Final = frozenset({"token", "key"})
_ENDS: Final = (
    *("apikey", "accesskey", "secretkey", "privatekey", "sharedkey", "signingkey", "accountkey"),
    *("authkey", "encryptionkey", "passkey", "hfkey", "wandbkey", "cometkey", "subscriptionkey"),
    *("accesstoken", "apitoken", "authtoken", "bottoken", "hftoken", "hubtoken", "idtoken"),
    *("refreshtoken", "securitytoken", "sessiontoken", "wandbtoken", "githubtoken"),
    *("secret", "passwd", "password", "passphrase", "authorization", "pwd", "passwrd"),
    *("storepass", "keypass", "userpass", "dbpass", "adminpass", "rootpass", "proxypass"),
    *("otlpheaders", "tracesheaders", "metricsheaders", "logsheaders"),
)
_ENDS_OF_ANY: Final = (*_ENDS, *(f"{end}s" for end in _ENDS))
_PLAIN: Final = frozenset({"authorization", "passphrase", "passwd", "password", "pswd", "secret"})
_MODIFIED: Final = frozenset(
    {"size", "length", "len", "count", "min", "max", "minimum", "maximum", "limit"}
    | {"rate", "ratio", "fraction", "share", "percent", "prob", "probability", "threshold", "score"}
    | {"dim", "dims", "width", "height", "index", "column", "col", "field", "weight", "dropout"}
    | {"policy", "policies", "type", "kind", "mode", "format", "method", "strategy", "algorithm"}
    | {"algo", "backend", "provider", "level", "strength", "complexity", "rounds", "iterations"}
    | {
        "ttl",
        "timeout",
        "expiry",
        "expiration",
        "lifetime",
        "interval",
        "period",
        "age",
        "rotation",
    }
    | {"file", "filename", "path", "dir", "folder", "name", "prefix", "suffix", "env", "variable"}
)
"""Nouns that may follow a secret word: ``--password-policy`` takes no password."""
_BEFORE_A_PASS: Final = frozenset(
    {"forward", "backward", "fwd", "bwd", "first", "second", "num", "n", "per", "single", "multi"}
    | {"low", "high", "band", "all", "optimizer"}
)
"""Words before a "pass" that is not a password: ``--high-pass 0.5``."""
_PARTS_OF_ADDRESSES: Final = frozenset({"webhook", "sas", "sig", "signature"})
"""Secrets that may be part of a path or a name, such as Slack's."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PLAIN_VALUES: Final = frozenset(
    {"", "-", "none", "null", "nil", "true", "false", "yes", "no", "on", "off", "auto", "default"}
    | {"basic", "digest", "bearer", "kerberos", "ldap", "gssapi", "ntlm", "negotiate", "anonymous"}
    | {"enabled", "disabled", "enable", "disable", "required", "optional", "always", "never"}
    | {"mit", "bsd", "apache-2.0", "gpl-3.0", "cc-by-4.0", "proprietary"}
)
"""Values of a secret name that only switch something on or off, or name a method."""
_OF_PASSWORDS: Final = re.compile(r"pass(?!in|out)|pwd|secret", re.IGNORECASE)
"""Names whose values are never plain words with a meaning."""
_WORDS_OF_KEYS: Final = re.compile(r"[a-z]+(?:[_,.:-][a-z]+)*")
"""Key names of a table (``--key model_state_dict``)."""
_SMALL: Final = re.compile(r"-?\d{1,8}(?:\.\d*)?")
_RANDOM: Final = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[\w\-+=~!$^*]{8,}")
BARE_KEY: Final = re.compile(r"[0-9a-fA-F]{32,}|[\w\-]{40,}")


def names_secret(name: str, value: str = "") -> bool:
    """Return whether a whole word of ``name`` denotes a secret ("num-keys" does not).

    Models have tokens and keys, too. These values are not secrets: small numbers (``--pad-token
    0``), key names of a table, and words that name a method (``--auth none``). The secret word must
    be the main noun of the name: a password policy is no password (``--password-policy strict``).
    """
    words, ends = _words_of(name)
    secret_words = _WORDS.intersection(words)
    if not secret_words and not ends:
        return False
    if value and _is_of_another_noun(words) and not _looks_drawn(value):
        return False
    if secret_words <= _ALSO_OF_MODELS and _SMALL.fullmatch(value):
        return False
    if secret_words == {"key"} and not ends and _WORDS_OF_KEYS.fullmatch(value):
        return False
    return not (value and value.lower() in _PLAIN_VALUES and not _OF_PASSWORDS.search(name))


def is_plainly_secret(name: str) -> bool:
    """Return whether ``name`` denotes a secret in any context."""
    words, ends = _words_of(name)
    return bool(_PLAIN.intersection(words)) or ends


def _is_of_another_noun(words: Sequence[str]) -> bool:
    """Return whether the last word of a name shows that its value is no secret."""
    if not _PARTS_OF_ADDRESSES.isdisjoint(words):
        return False
    last = next((word for word in reversed(words) if not word.isdecimal()), "")
    if last == "pass":
        return not _BEFORE_A_PASS.isdisjoint(words)
    return last in _MODIFIED or last.rstrip("s") in _MODIFIED


def _looks_drawn(value: str) -> bool:
    """Return whether ``value`` is clearly random: neither a number nor a word."""
    has_both = not value.islower() and not value.isupper()
    return bool(BARE_KEY.fullmatch(value)) or (has_both and looks_random(value))


def looks_random(value: str) -> bool:
    """Return whether ``value`` may be random: it has letters and digits, and is no file path."""
    return bool(_RANDOM.fullmatch(value))


def _words_of(name: str) -> tuple[list[str], bool]:
    """Return the words of a name, and whether one of them has the ending of a secret name."""
    words = [word.lower() for word in _WORD.findall(name)]
    return words, any(word.endswith(_ENDS_OF_ANY) for word in (*words, "".join(words[-2:])))
