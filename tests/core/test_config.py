"""A wrong parameter is one clear error that names it; a right one arrives unchanged."""

import dataclasses
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field

from plm_core.config import Share, UserError, digest, from_dict, section
from plm_core.shared.options import SamplingConfig


@section
class Inner:
    learning_rate: float
    layers: int = 5
    share: Share = 0.5


@section
class Outer:
    inner: Inner
    kind: Literal["bpe", "unigram"]
    names: list[str]
    flag: bool = False
    maybe: int | None = None
    pair: tuple[int, ...] = ()
    rates: dict[str, Inner] = field(default_factory=dict)
    anything: Any = None
    bytes: Annotated[int, Field(gt=0, le=1_000_000_000)] = 1
    some: Annotated[list[int], Field(min_length=1)] = field(default_factory=lambda: [1])
    title: Annotated[str, Field(min_length=1)] = "x"

    def __post_init__(self):
        if self.maybe == 13:
            raise ValueError("maybe: 13 is refused")


GOOD = {"inner": {"learning_rate": 1}, "kind": "bpe", "names": ["a", "b"]}


def build(**changes):
    return from_dict(Outer, GOOD | changes, "model.gpt")


def message(**changes):
    with pytest.raises(UserError) as caught:
        build(**changes)
    return str(caught.value)


def test_config_values_arrive_in_their_types():
    given_ = {"pair": [7, 99], "rates": {"x": {"learning_rate": 0.5, "layers": 3}}, "flag": True, "anything": {"k": 1}}
    built = build(**given_)
    assert built == Outer(Inner(1.0), "bpe", ["a", "b"], True, None, (7, 99), {"x": Inner(0.5, 3)}, anything={"k": 1})
    assert type(built.inner.learning_rate) is float


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"kinds": "bpe"}, "model.gpt.kinds", ["unknown", "did you mean 'kind'"]),
        ({"zzzzzz": 1}, "model.gpt.zzzzzz", ["unknown", "inner", "kind", "names"]),
        ({"inner": {"learning_rat": 1}}, "model.gpt.inner.learning_rat", ["did you mean 'learning_rate'"]),
        ({"inner": {}}, "model.gpt.inner.learning_rate", ["missing", "no default"]),
        ({"inner": 5}, "model.gpt.inner", ["found 5", "section", "learning_rate"]),
        ({"inner": None}, "model.gpt.inner", ["found None", "section"]),
        ({"inner": {"learning_rate": 1, "layers": True}}, "model.gpt.inner.layers", ["found True", "whole number"]),
        ({"inner": {"learning_rate": 1, "layers": 5.0}}, "model.gpt.inner.layers", ["found 5.0", "whole number"]),
        ({"inner": {"learning_rate": True}}, "model.gpt.inner.learning_rate", ["found True", "a number"]),
        ({"inner": {"learning_rate": "1e-4"}}, "model.gpt.inner.learning_rate", ["text '1e-4'", "a number", "1.0e-4"]),
        ({"inner": {"learning_rate": 1, "layers": "350"}}, "model.gpt.inner.layers", ["text '350'", "as 350, without"]),
        ({"inner": {"learning_rate": "fast"}}, "model.gpt.inner.learning_rate", ["text 'fast'", "a number"]),
        ({"kind": "wordpiece"}, "model.gpt.kind", ["text 'wordpiece'", "one of bpe, unigram"]),
        ({"kind": ["bpe"]}, "model.gpt.kind", ["one of bpe, unigram"]),
        ({"names": "a"}, "model.gpt.names", ["text 'a'", "a list"]),
        ({"names": ["a", 7]}, "model.gpt.names[1]", ["found 7", "text"]),
        ({"pair": [7, "x"]}, "model.gpt.pair[1]", ["text 'x'", "whole number"]),
        ({"flag": 1}, "model.gpt.flag", ["found 1", "true or false"]),
        ({"flag": "yes"}, "model.gpt.flag", ["text 'yes'", "true or false"]),
        ({"maybe": "7"}, "model.gpt.maybe", ["text '7'", "whole number"]),
        ({"rates": {"x": {}}}, "model.gpt.rates.x.learning_rate", ["missing"]),
        ({"rates": [1]}, "model.gpt.rates", ["found [1]", "section"]),
        ({"maybe": 13}, "model.gpt.maybe", ["13 is refused"]),
        ({"bytes": 10**10}, "model.gpt.bytes", ["found 10000000000", "at most 1,000,000,000"]),
        ({"some": []}, "model.gpt.some", ["found []", "at least 1 in the list"]),
        ({"title": ""}, "model.gpt.title", ["found the text ''", "some text"]),
        ({"inner": {"learning_rate": 1, "share": 1.5}}, "model.gpt.inner.share", ["found 1.5", "at most 1"]),
    ],
)
def test_a_wrong_parameter_is_named_with_what_was_found_and_expected(changes, place, words):
    text = message(**changes)
    assert text.startswith(f"{place}: ")
    assert "\n" not in text
    for word in words:
        assert word in text


def test_from_dict_reads_sections_only():
    @dataclass
    class Lax:
        layers: int = 5

    with pytest.raises(AssertionError, match="is not a section"):
        from_dict(Lax, {"layer": "5"}, "x")
    assert from_dict(SamplingConfig, {"top_k": 5}, "x").top_k == 5
    with pytest.raises(UserError, match=r"^x\.top_kk: unknown parameter; did you mean 'top_k'"):
        from_dict(SamplingConfig, {"top_kk": 5}, "x")


def test_a_missing_section_names_it():
    with pytest.raises(UserError, match=r"^pretrain\.gpt: found None; expected a section"):
        from_dict(Outer, None, "pretrain.gpt")


def test_null_is_accepted_only_where_the_type_says_so():
    assert build(maybe=None).maybe is None
    assert message(flag=None).startswith("model.gpt.flag: ")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))


KEYS = st.sampled_from([f.name for f in dataclasses.fields(Outer)]) | st.text("kind_7", max_size=6)


@given(st.dictionaries(KEYS, VALUES))
@example({"inner": {"\n": None}})
def test_from_dict_gives_the_dataclass_or_one_line_error(data):
    try:
        refusal = None
        assert dataclasses.is_dataclass(from_dict(Outer, data, "s"))
    except UserError as error:
        refusal = str(error)
    assert refusal is None or (refusal.startswith("s") and "\n" not in refusal)


def test_config_digest_ignores_key_order():
    first, second = digest(Inner(0.5, 7), {"a": 1, "b": [2]}), digest(Inner(0.5, 7), {"b": [2], "a": 1})
    assert first == second
    assert first != digest(Inner(0.5, 8), {"a": 1, "b": [2]})
    program = "from plm_core.config import digest; print(digest({'b': {'z', 'y'} and 1, 'a': 'text'}))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": s}, capture_output=True, check=True
        ).stdout
        for s in ("1", "2")
    }
    assert len(runs) == 1
