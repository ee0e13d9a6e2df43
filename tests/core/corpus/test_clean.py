"""Cleaning loses nothing: every paragraph and document is kept, or is a removal that says what was measured."""

import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.example_readers import NUMBER
from plm_core.config import UserError, from_dict
from plm_core.corpus.cleaning import Bounds, CleanConfig, clean_document, count_names
from plm_core.corpus.document import Document
from plm_core.corpus.language import LanguageConfig, language_of, require_known
from plm_core.corpus.measures import MEASURES, Text
from plm_core.corpus.normalize import duplicate_key, normalize, paragraphs
from plm_core.corpus.pii_masking import EMAIL, mask
from plm_core.corpus.removals import Removal

WORDS = st.sampled_from(
    ["a", "A", "Bé", "be\u0301", "the", "1.", "...", "\u2581", "\0", "\u00a0", "\x1c", "x" * 13, "a@b.de"]
)
SPACES = st.sampled_from([" ", "\n", "\n\n", "\r\n", "\r", "\t", " \n \n", "\u2028"])
TEXTS = st.lists(st.tuples(WORDS, SPACES), max_size=25).map(lambda parts: "".join(w + s for w, s in parts))
CORPORA = st.lists(TEXTS | st.text(), max_size=7).map(
    lambda texts: [Document(f"d{i}", t, "ab"[i % 2], {"n": i}) for i, t in enumerate(texts)]
)
NUMBERS = st.sampled_from([0, 0.1, 0.3, 0.5, 0.8, 1, 2, 3, 5, 8, 20])
BOUNDS = st.tuples(NUMBERS, NUMBERS).flatmap(
    lambda ends: st.sampled_from([Bounds(min=ends[0]), Bounds(max=ends[1]), Bounds(min(ends), max(ends))])
)
RULES = st.dictionaries(st.sampled_from(list(MEASURES)), BOUNDS, max_size=4)
CONFIGS = st.builds(CleanConfig, RULES, RULES, st.none(), st.sampled_from([(), ("email",)]))


@given(st.text() | TEXTS)
def test_normalize_is_idempotent_and_drops_nul_and_carriage_return(text):
    once = normalize(text)
    assert normalize(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not set("\0\r\u2581") & set(once)


@pytest.mark.parametrize(
    ("text", "normal"),
    [("e\u0301", "é"), ("a\r\nb\rc\n", "a\nb\nc\n"), ("a\0b", "ab"), ("\u2581", "_"), ("ﬁ \u00a0 ½", "ﬁ \u00a0 ½")],
)
def test_normalize_changes_only_what_is_documented(text, normal):
    assert normalize(text) == normal


def test_paragraphs_are_separated_by_lines_of_white_space():
    assert paragraphs("\n one \n two\n \t\n\n\nthree\n") == ["one\ntwo", "three"]
    assert paragraphs(" \n\n") == []


def test_paragraphs_are_equal_but_for_case_and_white_space():
    assert duplicate_key("One  two\nTHREE") == duplicate_key(" one two three ") == "one two three"


def inside(text, rules):
    """Whether a text meets every rule, by the measures alone."""
    values = {name: MEASURES[name](Text(text)) for name in rules}
    return all(
        (b.min is None or values[n] >= b.min) and (b.max is None or values[n] <= b.max) for n, b in rules.items()
    )


def require_reason(removal, rules):
    """The removal names the first rule that its text breaks, with the value and the bound that it crossed."""
    names = list(rules)
    before = names[: names.index(removal.rule)]
    assert inside(removal.text, {name: rules[name] for name in before})
    value, sign, end, bound = removal.value.split(" ")
    measured, allowed = MEASURES[removal.rule](Text(removal.text)), rules[removal.rule]
    assert float(value) == pytest.approx(measured, rel=1e-5)
    assert float(bound) == getattr(allowed, end)
    assert (measured < allowed.min) if (sign, end) == ("<", "min") else (measured > allowed.max)


@given(CORPORA, CONFIGS)
def test_cleaning_keeps_or_removes_paragraphs_with_reason(documents, config):
    for before in documents:
        cleaned = clean_document(before, config)
        text = normalize(before.text).replace("a@b.de", EMAIL) if config.mask else normalize(before.text)
        given_paragraphs = paragraphs(text)
        assert cleaned.counts["read_paragraphs"] == len(given_paragraphs)
        single = [r for r in cleaned.removals if r.paragraph is not None]
        assert [r.paragraph for r in single] == sorted({r.paragraph for r in single})
        for removal in single:
            assert (removal.document, removal.source) == (before.id, before.source)
            assert removal.text == given_paragraphs[removal.paragraph]
            require_reason(removal, config.paragraphs)
        kept = [p for i, p in enumerate(given_paragraphs) if i not in {r.paragraph for r in single}]
        assert all(inside(p, config.paragraphs) for p in kept)
        if cleaned.document is not None:
            assert cleaned.document == Document(before.id, "\n\n".join(kept), before.source, before.metadata)
            assert kept
            assert inside(cleaned.document.text, config.documents)
            assert single == cleaned.removals
        else:
            *others, whole = cleaned.removals
            assert others == single
            assert (whole.document, whole.paragraph, whole.source) == (before.id, None, before.source)
            assert whole.text == "\n\n".join(kept)
            if kept:
                require_reason(whole, config.documents)
            else:
                assert (whole.rule, whole.value) == ("empty", f"0 of {len(given_paragraphs)} paragraphs kept")


@given(CORPORA, CONFIGS)
def test_cleaning_counts_add_up_by_rule(documents, config):
    total, removals, kept = Counter(), [], []
    for document in documents:
        cleaned = clean_document(document, config)
        total.update(cleaned.counts)
        removals += cleaned.removals
        kept += [cleaned.document] if cleaned.document else []
    assert set(total) <= set(count_names(config))
    assert total["read_documents"] == len(documents)
    assert total["read_paragraphs"] == sum(len(paragraphs(normalize(d.text))) for d in documents)
    assert total["read_bytes"] == sum(len(d.text.encode()) for d in documents)
    assert total["kept_documents"] == len(kept)
    assert total["kept_paragraphs"] == sum(len(paragraphs(d.text)) for d in kept)
    assert total["kept_bytes"] == sum(len(d.text.encode()) for d in kept)
    for level, rows in (
        ("documents", [r for r in removals if r.paragraph is None]),
        ("paragraphs", [r for r in removals if r.paragraph is not None]),
    ):
        assert total[f"read_{level}"] == total[f"kept_{level}"] + total[f"removed_{level}"]
        by_rule = {n: c for n, c in total.items() if n.startswith(f"removed_{level}_")}
        assert total[f"removed_{level}"] == sum(by_rule.values())
        with_document = by_rule.pop("removed_paragraphs_with_document", 0)
        assert sum(by_rule.values()) == len(rows)
        assert {n: c for n, c in by_rule.items() if c} == Counter(f"removed_{level}_{r.rule}" for r in rows)
        assert level == "paragraphs" or not with_document
    assert total["masked_email"] == (sum(d.text.count("a@b.de") for d in documents) if config.mask else 0)


@given(CORPORA, CONFIGS)
def test_cleaning_is_idempotent(documents, config):
    once = [cleaned.document for d in documents if (cleaned := clean_document(d, config)).document]
    twice = [clean_document(d, config) for d in once]
    assert [cleaned.document for cleaned in twice] == once
    assert not any(cleaned.removals for cleaned in twice)


def test_removal_states_measured_and_allowed_values():
    config = CleanConfig(
        paragraphs={"words": Bounds(min=2, max=4), "alphabetic_word_share": Bounds(min=0.7)},
        documents={"words": Bounds(min=6)},
    )
    text = "One.\n\nOne two three.\n\n1 2 three\n\na b c d e"
    cleaned = clean_document(Document("s/x", text, "s"), config)
    assert cleaned.document is None
    assert cleaned.removals == [
        Removal("s/x", 0, "s", "words", "1 < min 2", "One."),
        Removal("s/x", 2, "s", "alphabetic_word_share", "0.333333 < min 0.7", "1 2 three"),
        Removal("s/x", 3, "s", "words", "5 > max 4", "a b c d e"),
        Removal("s/x", None, "s", "words", "3 < min 6", "One two three."),
    ]


def test_masked_personal_data_is_not_in_removals():
    config = CleanConfig(paragraphs={"words": Bounds(min=2)}, mask=("email",))
    cleaned = clean_document(Document("x", "a@b.de\n\nWrite to c@d.de", "s"), config)
    assert (cleaned.document.text, cleaned.removals[0].text) == (f"Write to {EMAIL}", EMAIL)
    assert cleaned.counts["masked_email"] == 2


PROSE = {
    "en": "It is my duty to give to the Congress information of the state of the Union, and I do so with pleasure.",
    "de": "Es ist meine Pflicht, dem Kongress über die Lage der Nation zu berichten, und ich tue es mit Freude.",
    "fr": "Il est de mon devoir de rendre compte au Congrès de la situation de la nation, et je le fais avec plaisir.",
}


@pytest.mark.parametrize("language", PROSE)
def test_language_filter_removes_and_names_the_language_found(language):
    config = CleanConfig(languages=LanguageConfig(("en", "fr")))
    document = Document("x", PROSE[language], "s", {"year": 7})
    cleaned = clean_document(document, config)
    assert cleaned.counts[f"language_{language}"] == 1
    if language == "de":
        (removal,) = cleaned.removals
        assert (removal.rule, removal.paragraph, removal.text) == ("language", None, PROSE["de"])
        code, confidence = removal.value.removesuffix("; expected en, fr").split()
        assert code == "de"
        assert 0.5 < float(confidence) <= 1
    else:
        assert cleaned.document == Document("x", document.text, "s", {"detected_language": language, "year": 7})


@pytest.mark.parametrize("text", ["😀", "12 34", "", PROSE["en"]])
def test_ambiguous_language_is_undetermined(text):
    code, confidence = language_of(text, min_confidence=1.0)
    assert 0 <= confidence <= 1
    assert code == ("und" if confidence < 1 else "en")


def test_language_stated_by_the_source_is_kept():
    config = CleanConfig(languages=LanguageConfig(("en",)))
    stated = {"detected_language": "en-GB", "language": "English"}
    # Only the beginning is read for the language.
    text = PROSE["en"] * 10 + "\n\n" + PROSE["de"] * 99
    assert clean_document(Document("x", text, "s", stated), config).document.metadata == stated


REFUSED = [
    ({"paragraphs": {"wrods": {"min": 4}}}, "clean.paragraphs.wrods: unknown measure; did you mean 'words'?"),
    (
        {"documents": {"perplexity": {"max": 4}}},
        "clean.documents.perplexity: unknown measure; expected one of characters",
    ),
    ({"documents": {"words": {}}}, "clean.documents.words.min: missing, and max too; expected at least one"),
    ({"documents": {"words": {"min": 9, "max": 3}}}, "clean.documents.words.min: 9.0 is more than max (3.0)"),
    ({"documents": {"words": {"least": 9}}}, "clean.documents.words.least: unknown parameter"),
    ({"documents": {"words": {"min": 9, "words": ["the"]}}}, "clean.documents.words.words: unknown parameter"),
    (
        {"documents": {"stop_words": {"min": 2, "word": ["und"]}}},
        "clean.documents.stop_words.word: unknown parameter; did you mean 'words'?",
    ),
    ({"mask": ["e-mail"]}, "clean.mask[0]: found the text 'e-mail'; expected one of email, ip, phone"),
    ({"mask": ["ip", "ip"]}, "clean.mask: ip, ip; expected each kind once"),
    ({"languages": {"keep": []}}, "clean.languages.keep: empty"),
    ({"languages": {"keep": ["English"]}}, "clean.languages.keep: found 'English'; expected codes"),
]


@pytest.mark.parametrize(("section", "message"), REFUSED)
def test_invalid_cleaning_rules_are_refused_by_dotted_name(section, message):
    with pytest.raises(UserError) as error:
        from_dict(CleanConfig, section, "clean")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ({"stop_words": {"min": 2, "words": ["der", "und"]}}, "der Staat und das Volk", "the State and the people"),
        ({"policy_phrases": {"max": 0, "phrases": ["alle rechte"]}}, "Our cookie policy", "Alle Rechte vorbehalten"),
        ({"long_lines": {"max": 0, "characters": 9}}, "one two", "one two three"),
        ({"short_line_share": {"max": 0, "characters": 7}}, "one two three", "one two"),
    ],
)
def test_cleaning_rule_measures_with_its_own_arguments(rule, inside, outside):
    config = from_dict(CleanConfig, {"documents": rule}, "clean")
    assert clean_document(Document("a", inside, "s"), config).document
    assert not clean_document(Document("a", outside, "s"), config).document


def test_unknown_language_is_refused():
    require_known(LanguageConfig(("en", "und")))
    with pytest.raises(UserError, match=r"clean\.languages\.keep: 'xx' cannot be identified; .* de, .*en, "):
        require_known(LanguageConfig(("en", "xx")))


def sentences(text):
    return MEASURES["sentences"](Text(text))


def masked(text):
    return mask(text, ["email", "ip", "phone"])


LINEAR = {
    "sentences": (sentences, "." * 400_000 + "x"),
    "closed sentences": (sentences, "." + ")" * 400_000 + "x"),
    "numbers": (NUMBER.fullmatch, "1" * 400_000 + "x"),
    "addresses": (masked, "a@" + "a." * 200_000 + "@"),
    "signs": (masked, "@a.1.+1:2:" * 100_000),
    "long numbers": (masked, f"+1{'5' * 60}x " * 1000),
    **{part: (masked, part * 100_000) for part in ("a", "a.", "+1", "1-", "+1 ", "a@", "2:", "(2", "ab@cd", "202-")},
}


@pytest.mark.parametrize("name", LINEAR)
def test_cleaning_time_is_linear_in_text_length(name):
    """With its square it would be more than the ten minutes after which any test has failed."""
    work, text = LINEAR[name]
    work(text)
