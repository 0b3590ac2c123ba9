"""Shapes of service tokens, URLs that contain secrets, and programs that take passwords.

The hooks also load this file in the program's own Python: 3.8 or later, without traceprof.
"""

from __future__ import annotations

import re
from typing import Final

# Token prefix and pattern of the rest. Truncated tokens also match, so that they are masked.
# Lines without a remark follow gitleaks' public rules (config/gitleaks.toml of 2026-07-22, which
# has whole tokens). Lines with a remark follow the documentation of the service.
_GIVEN_OUT: Final = r"""
sk-(?=[a-z_-]{0,99}[0-9A-Z]) [\w-]{8,}
[sr]k_(?:live|test|prod)_    \w{8,}
gh[opsur]_                   \w{8,}
github_pat_                  \w{8,}
gl(?:pat|dt|rt|cbt|ptt|ft|soat|oas|agent|imt|ffct)-  [\w.-]{8,}
GR1348941                    [\w-]{8,}
hf_(?=[a-z_]{0,99}[0-9A-Z])  \w{8,}
api_org_                     [A-Za-z]{16,}
xox[abeoprs]-                [\w-]{8,}
xapp-                        [\w-]{8,}
A(?:KI|SI|BI|CC)A            [A-Z0-9]{12,}
ABSK                         [A-Za-z0-9+/]{40,}
bedrock-api-key-             [\w+/=-]{8,}
AIza                         [\w-]{20,}
ya29\.                       [\w-]{8,}
eyJ                          [\w-]{8,}(?:\.[\w-]*){0,4}
npm_                         \w{20,}
pypi-                        [\w-]{16,}
do[opr]_v1_                  \w{16,}
SG\.                         [\w-]{8,}\.[\w-]{8,}
nvapi-                       [\w-]{8,}
r8_                          \w{16,}
lsv2_                        \w{16,}
hv[bsr]\.                    [\w-]{20,}
s\.(?=[A-Za-z]{0,23}\d)      [A-Za-z0-9]{24}(?![A-Za-z0-9])
dapi                         [0-9a-f]{32}
lin_(?:api|oauth)_           [A-Za-z0-9]{16,}
shp(?:at|ca|pa|ss)_          [0-9a-fA-F]{16,}
AT(?:AT|CT)T3                [\w=-]{16,}
pul-                         [0-9a-f]{40}
(?:pub)?key-                 [0-9a-f]{32}
AGE-SECRET-KEY-1             [0-9A-Z]{16,}
pplx-                        [A-Za-z0-9]{16,}
PMAK-                        [0-9a-f-]{16,}
gl(?:c|sa)_                  [A-Za-z0-9+/=]{32,}(?:_[A-Fa-f0-9]{8})?
ntn_                         [A-Za-z0-9]{16,}
pscale_(?:tkn|oauth|pw)_     [\w=.-]{16,}
pnu_                         [A-Za-z0-9]{16,}
rdme_                        [a-z0-9]{16,}
rubygems_                    [0-9a-f]{16,}
xkeysib-                     [0-9a-f]{16,}(?:-\w+)?
sntry[su]_                   [\w+/=]{16,}
shippo_(?:live|test)_        [0-9a-fA-F]{16,}
SK                           [0-9a-f]{32}
dp\.(?:pt|st|ct|sa)\.        [A-Za-z0-9]{40,}
dt0c01\.                     [\w.]{16,}
EZ[AT]K                      [A-Za-z0-9]{50,}
EAA[MC]                      [A-Za-z0-9]{60,}
f(?:o1|m1[ar]|m2)_           [\w+/=-]{40,}
HRKU-                        [\w-]{16,}
sha256~                      [\w-]{40,}
API-                         [A-Z0-9]{26}
ops_eyJ                      [\w+/=]{16,}
LTAI                         [A-Za-z0-9]{16,}
AKCp                         [A-Za-z0-9]{40,}
cmVmd                        [A-Za-z0-9]{40,}
CLOJARS_                     [a-z0-9]{16,}
p8e-                         [A-Za-z0-9]{32}
sq0atp-                      [\w-]{16,}
duffel_(?:live|test)_        [\w=-]{16,}
tk-us-                       [\w-]{16,}
sgp_                         [0-9a-fA-F_]{40,}
NR(?:AK|JS|II|RA)-           [\w-]{16,}
v1\.0-                       [0-9a-f]{24}-[0-9a-f]{40,}
dckr_[op]at_                 [\w-]{8,}# Docker
wandb_v1_                    [\w-]{8,}# Weights & Biases
(?:bot)?\d{6,12}:AA          [\w-]{20,}# Telegram
sq[apub]_                    [0-9a-f]{40}# SonarQube
tskey-                       [\w-]{8,}# Tailscale
ATBB                         [A-Za-z0-9]{24,}# Bitbucket
gsk_                         [A-Za-z0-9]{20,}# Groq
xai-                         [A-Za-z0-9]{20,}# xAI
fw_(?=[A-Za-z]{0,99}\d)      [A-Za-z0-9]{20,}(?!\w)# Fireworks
secret_(?=[A-Za-z]{0,99}\d)  [A-Za-z0-9]{12,}(?!\w)# Notion, before 2024
(?:pi|seti|src)_[A-Za-z0-9]{8,99}_secret_  [A-Za-z0-9]{8,}# Stripe, of one payment
whsec_                       [A-Za-z0-9+/=]{16,}# Stripe, of a webhook
tgp_v1_                      [\w-]{16,}# Together
pcsk_                        [\w-]{16,}# Pinecone
rpa_                         [A-Z0-9]{20,}# RunPod
figd_                        [\w-]{16,}# Figma
sbp_                         [0-9a-f]{16,}# Supabase
"""


SHAPES: Final = [line.partition("#")[0].split() for line in _GIVEN_OUT.strip().splitlines()]
"""Prefix of each token and pattern of the rest."""
_BEGIN: Final = r"(?<![A-Za-z0-9])(?:"
BEGINNINGS: Final = _BEGIN + "|".join([first for first, _ in SHAPES]) + ")"
TOKENS: Final = re.compile(
    _BEGIN
    + "|".join([first + rest for first, rest in SHAPES])
    + r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*)",
    re.DOTALL,
)
SHORT: Final = re.compile(_BEGIN + r"fw_)(?P<rest>[A-Za-z0-9]{12,})(?!\w)")
"""Prefixes that ordinary names share: the rest must look random."""
LOGIN: Final = re.compile(r"(?<!\w)\w+://(?P<hidden>[^/@\s]+)@")
ORACLE: Final = re.compile(r"\bjdbc:oracle:\w+:[^/:@\s]*/(?P<hidden>[^@\s]{1,99})@")
HOOK: Final = re.compile(
    r"https?://(?:hooks\.[\w.-]+|discord(?:app)?\.com/api/webhooks|[\w.-]*webhook\.office\.com"
    r"|outlook\.office(?:365)?\.com/webhook)"
    r"/(?P<hidden>[^\s\"']+)"
)

_DATABASES: Final = (
    *("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"),
    *("mongo", "mongosh", "mongodump", "mongorestore", "mongoimport", "mongoexport", "cqlsh"),
)
_LDAP: Final = ("ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami", "ldappasswd")
_HTTPIE: Final = ("http", "https", "httpie", "xh", "xhs")
PASSWORD_PROGRAMS: Final = {
    "-p": frozenset(
        {*_DATABASES, "sshpass", "7z", "zip", "unzip", "login", "twine", "rdesktop", "ncftpput"}
    ),
    "-P": frozenset({"sqlcmd", "bcp", "mosquitto_pub", "mosquitto_sub", "ipmitool"}),
    "-a": frozenset({"redis-cli"}),
    "-w": frozenset(_LDAP),
    "-s": frozenset({"ldappasswd"}),
    "-b": frozenset({"curl"}),
    "-k": frozenset({"openssl"}),
    "-K": frozenset({"openssl"}),
}
"""Option → programs where this option takes a password, although its name does not say so."""
LOGIN_PROGRAMS: Final = (
    ("-a", ":", frozenset({*_HTTPIE, "hey", "oha"})),
    ("-A", ":", frozenset({"ab"})),
    ("-P", ":", frozenset({"ab"})),
    ("-u", ",", frozenset({"lftp"})),
)
"""Option, separator, and programs: the option takes a user name, the separator, and a password."""
PLACES_OF_PASSWORDS: Final = (
    ("mc", "alias set", 4),
    ("mc", "config host add", 4),
    ("mc", "admin user add", 3),
    ("mcli", "alias set", 4),
    ("mcli", "admin user add", 3),
    ("htpasswd", "htpasswd", 2),
    ("htpasswd", "htpasswd", 3),
    ("mosquitto_passwd", "mosquitto_passwd", 3),
    ("rabbitmqctl", "add_user", 2),
    ("rabbitmqctl", "change_password", 2),
    ("rabbitmqctl", "authenticate_user", 2),
    ("rclone", "obscure", 1),
    ("wpa_passphrase", "wpa_passphrase", 2),
)
"""A program, words of its command line, and which argument after them, from 1, is a password.

Options are not counted. For ``htpasswd`` it is one of two: with ``-n`` there is no file argument.
"""
