"""Masking: e-mail addresses, IP addresses and telephone numbers become placeholders. An option of the clean stage.

FineWeb masks e-mail addresses and public IPv4 addresses in this way (Penedo et al. 2024, arXiv:2406.17557, section 3.7;
datatrove's PIIFormatter). The placeholders are addresses and a number reserved for examples: RFC 2606, RFC 5737, RFC
3849, and 555-0100 in the North American plan. Masking masked text does not change it.

Limits. Names, postal addresses, account and passport numbers stay. "name at example dot org" stays. A telephone number
stays if it looks like any other number: without a plus sign, without an area code, or in national forms other than the
North American ones. Four small numbers with dots ("1.2.3.4") are an address unless preceded by a word such as "version"
or "section".
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

Kind = Literal["email", "ip", "phone"]

EMAIL = "email@example.com"
IPV4 = "192.0.2.1"
IPV6 = "2001:db8::1"
PHONE = "(202) 555-0100"

_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
# At most 64 characters before the sign (RFC 5321), and only from where they begin, so that a long run is scanned once.
_EMAIL = re.compile(rf"(?<![\w.%+-])[\w.%+-]{{1,64}}@(?:{_LABEL}\.)+(?:xn--[\w-]{{1,59}}|[^\W\d_]{{2,63}})")
_IPV4 = re.compile(r"(?<![\w.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\w|-[^\W\d]|\.\w)")
_NUMBERED = re.compile(
    r"(?:\b(?:v|ver|version|release|rev|revision|build|sec|section|chapter|clause|article|rule|table|figure)\.?|§) ?$",
    re.IGNORECASE,
)
# Addresses of the public Internet begin with 2 or 3 (RFC 4291: 2000::/3), which no "std::vector" does.
_IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,34}(?![\w:])")
_NO_MORE = r"(?![\w%]|[.,][0-9])"
_INTERNATIONAL = re.compile(
    r"(?<![\w+.,])\+[1-9][0-9]{0,2}(?:[ ./-]?(?:\([0-9]{1,4}\)|[0-9]{1,14}+)){1,6}" + _NO_MORE,
)
_AREA = "[2-9][0-9]{2}"
_NORTH_AMERICAN = re.compile(
    rf"(?<![\w+.,-])(?:1[-. ])?(?:\({_AREA}\) ?{_AREA}[-. ]|{_AREA}([-.]){_AREA}\1)[0-9]{{4}}(?!-){_NO_MORE}"
)


def mask(text: str, kinds: Iterable[Kind]) -> tuple[str, dict[Kind, int]]:
    """The text with placeholders, and how many of each of ``kinds`` there are, even if 0. Line ends do not change."""
    counts: dict[Kind, int] = dict.fromkeys(kinds, 0)

    def put(kind: Kind, replacement: Callable[[re.Match[str]], str], match: re.Match[str]) -> str:
        new = replacement(match)
        counts[kind] += new != match[0]
        return new

    for kind in counts:
        for hint, pattern, replacement in _FORMS[kind]:
            if hint.search(text):
                text = pattern.sub(partial(put, kind, replacement), text)
    return text, counts


def _ipv4(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 12) : match.start()]
    return IPV4 if _public(match[0]) and not _NUMBERED.search(before) else match[0]


def _public(address: str) -> bool:
    """Whether it is an address of the public Internet: private, loopback and example addresses are not masked."""
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _international(match: re.Match[str]) -> str:
    """E.164: a plus sign and 8 to 15 digits. Not "+48.858370" (a coordinate), not "+120 000 000" (a sum)."""
    digits = re.sub(r"\D", "", match[0])
    decimal = re.fullmatch(r"\+\d+\.\d+", match[0])
    return PHONE if 8 <= len(digits) <= 15 and not decimal and not digits.endswith("00000") else match[0]


_FORMS: dict[Kind, tuple[tuple[re.Pattern[str], re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = {
    "email": ((re.compile("@"), _EMAIL, lambda _: EMAIL),),
    "ip": (
        (re.compile(r"[0-9]\.[0-9]"), _IPV4, _ipv4),
        (re.compile(r":[0-9A-Fa-f]{0,4}:"), _IPV6, lambda match: IPV6 if _public(match[0]) else match[0]),
    ),
    "phone": (
        (re.compile(r"\+[1-9]"), _INTERNATIONAL, _international),
        (re.compile(r"[0-9]{3}[-. ][0-9]{4}"), _NORTH_AMERICAN, lambda _: PHONE),
    ),
}
"""For each kind: a hint that occurs in every text with a match, and begins with a rare character, so that a text
without it is skipped quickly; the pattern; and the placeholder for a match, or the match itself if it is not to be
masked."""
