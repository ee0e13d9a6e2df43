"""What is personal is masked and counted; what looks like it is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.pii_masking import EMAIL, IPV4, IPV6, PHONE, mask

MASKED = [
    ("email", "Write to jane.doe+news@mail.example.co.uk.", f"Write to {EMAIL}."),
    ("email", "<a@b.de>, (c_d@e-f.org); mailto:G%H@I.JP!", f"<{EMAIL}>, ({EMAIL}); mailto:{EMAIL}!"),
    ("email", "josé@münchen.de und jörg@straße.de", f"{EMAIL} und {EMAIL}"),
    ("email", "x@y.xn--p1ai", EMAIL),
    ("email", "git@github.com:owner/name", f"{EMAIL}:owner/name"),
    ("ip", "Asked 8.8.8.8, then 1.1.1.1.", f"Asked {IPV4}, then {IPV4}."),
    ("ip", "http://93.184.216.34:8080/x [151.101.1.140]", f"http://{IPV4}:8080/x [{IPV4}]"),
    ("ip", "8.8.8.8-8.8.4.4", f"{IPV4}-{IPV4}"),
    ("ip", "from 2606:4700:4700::1111 to 2A00:1450:4001:0080:0000:0000:0000:2004,", f"from {IPV6} to {IPV6},"),
    ("phone", "Call +49 30 1234567 or +442079460958.", f"Call {PHONE} or {PHONE}."),
    ("phone", "+44 (0)20 7946 0958, +1 (202) 555-0143, +33-1-23-45-67-89", f"{PHONE}, {PHONE}, {PHONE}"),
    ("phone", "(202) 456-1111 and 202-456-1111 and 1-202-456-1111", f"{PHONE} and {PHONE} and {PHONE}"),
    ("phone", "(202)456-1111; 202.456.1111", f"{PHONE}; {PHONE}"),
]
LEFT = [
    ("email", "50 pens @ 3.50 each, @handle, a@b, me@localhost, 10@5.00, x @ y.com"),
    ("ip", "Python 3.11.2, version 1.2.3.4, Release 10.20.30.40, v8.8.8.8, section 8.8.8.8, § 8.8.8.8"),
    ("ip", "8.8.8.8.8, 1.2.3, 256.1.1.1, 08.08.08.08, 8.8.8.8-beta, 8.8.8.8x, x8.8.8.8"),
    ("ip", "127.0.0.1, 10.0.0.7, 192.168.1.1, 203.0.113.9, 12.05.2024"),
    ("ip", "std::vector, abc::def, 12:30:45, 2001:3:4, fe80::1, ::1, 2001:db8::7, 00:1b:44:11:3a:b7, 20:15:00"),
    ("phone", "1861-1865, 2024-01-15, 15.01.2024, 1790 to 2026, 12:30"),
    ("phone", "$1,234,567,890, 1 234 567 890 people, 123456789012, +2,500,000, +15 000 000 votes, +120 000 000"),
    ("phone", "+3.5%, +12%, 5+12345678, +48.858370, -0.12345678, 3.14159265, 202-456-1111.5"),
    ("phone", "ISBN 978-3-16-148410-0, 123-45-6789, 4111 1111 1111 1111, 555-0100, 102-456-1111, 0202-456-1111"),
    ("phone", "+1234567, +1 2345, part 202-456-11111, UTC+10:30"),
]


@pytest.mark.parametrize(("kind", "text", "masked"), MASKED)
def test_masking_replaces_personal_data(kind, text, masked):
    placeholders = [EMAIL] if kind == "email" else [IPV4, IPV6] if kind == "ip" else [PHONE]
    assert mask(text, [kind]) == (masked, {kind: sum(masked.count(p) for p in placeholders)})
    # Placeholders stay what they are and are not counted.
    assert mask(masked, ["email", "ip", "phone"]) == (masked, {"email": 0, "ip": 0, "phone": 0})


@pytest.mark.parametrize(("kind", "text"), LEFT)
def test_masking_keeps_lookalikes_of_personal_data(kind, text):
    assert mask(text, [kind]) == (text, {kind: 0})


def test_masking_is_limited_to_the_configured_kinds():
    text = "a@b.de 8.8.8.8 +49 30 1234567"
    assert mask(text, []) == (text, {})
    assert mask(text, ["phone"]) == (f"a@b.de 8.8.8.8 {PHONE}", {"phone": 1})
    everything = mask(text, ["email", "ip", "phone"])
    assert everything == (f"{EMAIL} {IPV4} {PHONE}", {"email": 1, "ip": 1, "phone": 1})


PARTS = st.sampled_from(
    ["a@b.de", "@", "8.8.8.8", ".", ":", "2606::", "+", "49", "(202)", "-", " ", "\n", "x", "é", "1"]
)


@given(st.lists(PARTS, max_size=20).map("".join) | st.text())
def test_masking_keeps_line_structure(text):
    masked, counts = mask(text, ["email", "ip", "phone"])
    assert [line == "" for line in masked.split("\n")] == [line == "" for line in text.split("\n")]
    if masked == text:
        assert set(counts.values()) == {0}
