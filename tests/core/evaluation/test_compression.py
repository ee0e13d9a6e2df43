"""What a text adds to the compressed text before it."""

import random

from plm_core.evaluation.compression import bits_after


def test_what_was_read_before_costs_next_to_nothing_and_noise_all_of_it():
    text, noise = (random.Random(seed).randbytes(20_000) for seed in (1, 2))
    assert bits_after(text, text) < 0.02 * 8 * len(text)
    assert 0.99 < bits_after(text, noise) / (8 * len(noise)) < 1.1


def test_a_text_that_resembles_the_one_before_is_cheaper_than_alone():
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(300)]
    before, text = (" ".join(draw.choices(words, k=3000)).encode() for _ in range(2))
    assert bits_after(before, text) < 0.95 * bits_after(b"", text)
