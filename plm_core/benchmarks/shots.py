"""The shots of an example: answered training examples that precede it in a prompt. Used by the stage fewshot."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from plm_core.benchmarks.examples import Example
from plm_core.files import sha256_text


class Shots:
    """Draws shots for examples: a function of the seed, the example and the training set, and of nothing else."""

    def __init__(self, train: Sequence[Example], seed: int) -> None:
        """Shots are taken from ``train``, whose order does not matter."""
        self._seed = seed
        self._of_class: dict[int, list[Example]] = {}
        for example in sorted(train, key=lambda each: each.id):
            self._of_class.setdefault(int(example.label), []).append(example)

    def draw(self, example: Example, most: int) -> list[Example]:
        """At most ``most`` shots, the nearest to the question first; fewer if the training set has no more.

        The classes take turns, in an order that is drawn for the example: among consecutive shots each class occurs as
        often as any other, or once more, while it has examples left. Fewer shots are the first of more. None has the
        same texts as the example itself.
        """
        return list(islice(self._turns(example), most))

    def _turns(self, example: Example) -> Iterator[Example]:
        source = random.Random(int(sha256_text(f"{self._seed}/{example.id}"), 16))
        classes = sorted(self._of_class)
        source.shuffle(classes)
        waiting = [_shuffled(self._of_class[label], source) for label in classes]
        own = set(example.texts)
        while waiting:
            for one in list(waiting):
                shot = next((shot for shot in one if set(shot.texts) != own), None)
                if shot is None:
                    waiting.remove(one)
                else:
                    yield shot


def _shuffled(examples: Sequence[Example], source: random.Random) -> Iterator[Example]:
    """The examples in random order, drawn on demand (Durstenfeld 1964, algorithm 235)."""
    moved: dict[int, int] = {}
    for first in range(len(examples)):
        drawn = source.randrange(first, len(examples))
        yield examples[moved.get(drawn, drawn)]
        moved[drawn] = moved.pop(first, first)
