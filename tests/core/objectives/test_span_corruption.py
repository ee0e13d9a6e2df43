"""Span corruption: source and target together are the text, in the proportions of the paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from papers import make

from plm_core.configs.architectures import T5Config
from plm_core.objectives.span_corruption import SpanCorruption, partition
from plm_core.text.tokenizers import EOS


def test_row_lengths_are_those_of_the_released_code():
    """512 positions of source hold 568 tokens of text, and 114 of target (Raffel et al., t5.data.preprocessors)."""
    objective = SpanCorruption()
    assert objective.text_length(512) == 568
    assert sum(objective.sizes(568)) + 1 == 114


@given(total=st.integers(1, 99), parts=st.integers(1, 99), seed=st.integers(0, 9))
def test_a_partition_adds_up(total, parts, seed):
    parts = min(parts, total)
    numbers = partition(total, parts, np.random.default_rng(seed))
    assert sum(numbers) == total
    assert len(numbers) == parts
    assert min(numbers) >= 1


@pytest.mark.parametrize("name", ["t5", "transformer"])
def test_target_fills_the_gaps_of_the_source(store, name):
    model, objective = make(name)
    batches = objective.batches(store, model.config, 5)
    length = objective.text_length(model.config.context)
    starts = batches.view.starts_at(3, 7, 5)
    batch = batches.at(3, 7)
    for start, source, target in zip(starts.tolist(), batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert source.pop() == target.pop() == EOS
        gaps = {}
        for token in target:
            if token >= model.config.vocab_size:
                gap = gaps.setdefault(token, [])
            else:
                gap.append(token)
        text = [token for i in source for token in gaps.get(i, [i])]
        assert text == store.tokens(start, start + length).tolist()
        assert list(gaps) == [i for i in source if i >= model.config.vocab_size]
        assert list(gaps) == sorted(gaps, reverse=True)
        assert max(gaps) == model.config.first_sentinel
        assert (sum(map(len, gaps.values())), len(gaps)) == objective.sizes(length)


def test_a_row_with_more_spans_than_sentinels_is_refused():
    config = T5Config(vocab_size=99, context=200, layers=1, heads=1, width=4, sentinels=9)
    with pytest.raises(ValueError, match=r"^model\.sentinels: 9; expected at least 11, one for each span of a row"):
        SpanCorruption().require_fit(config)
