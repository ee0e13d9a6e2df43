"""Pieces of a team's own text for a published tokenizer, and their rows in the model that it belongs to.

A published WordPiece gets whole words, a byte-level BPE more merges after its own (as in Yamaguchi et al. 2024, "How
Can We Effectively Expand the Vocabulary of LLMs with 0.01GB of Target Language Text?"). A text in which no new piece
occurs has the same tokens as before, and each text is decoded as before. The ids of old pieces do not change.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor

from plm_core.corpus.normalize import normalize
from plm_core.text.hf_tokenizers import MIN_FREQUENCY
from plm_core.text.published_tokenizer import Published, wrap_published
from plm_core.text.tokenizers import JSON_FILE, Tokenizer

FIRST = 0x10000
"""The character that stands for the first piece when merges are learned; from here on none is a space."""


def extend_tokenizer(base: Tokenizer, texts: Iterable[str], count: int) -> bytes:
    """The file of a tokenizer with ``count`` more pieces, learned from texts; equal input gives equal bytes.

    Raises:
        ValueError: ``base`` is not a published WordPiece or byte-level BPE, or the texts do not support as many pieces;
            the message begins with ``extend``.
    """
    content = json.loads(base.content) if isinstance(base, Published) and base.name == JSON_FILE else {}
    model = content.get("model", {})
    words_alone = model.get("type") == "WordPiece"
    merging = model.get("type") == "BPE" and '"ByteLevel"' in json.dumps(content["pre_tokenizer"])
    if not isinstance(base, Published) or not (words_alone or merging):
        raise ValueError(f"extend: {base.path} is not a published WordPiece or byte-level BPE; expected extend: 0")
    library: Any = base.library.model

    # The words that are several pieces, as the library cuts them.
    words: Counter[str] = Counter()
    for text in texts:
        normal = normalize(text)
        if library.normalizer:
            normal = library.normalizer.normalize_str(normal)
        words.update(word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal))
    divided = {word: ids for word in words if len(ids := [token.id for token in library.model.tokenize(word)]) > 1}

    # What to add: a piece, the published ids of its parts and, for BPE, the pair that it is made of.
    added: list[tuple[str, list[int], list[str]]]
    if words_alone:
        _require_characters(base, model, {token["content"] for token in content["added_tokens"]})
        saved = {word: words[word] * (len(ids) - 1) for word, ids in divided.items() if words[word] >= MIN_FREQUENCY}
        added = [(word, divided[word], []) for word in sorted(saved, key=lambda word: (-saved[word], word))]
    else:
        added = list(_merges(divided, words, library, count))
    if len(added) < count:
        raise ValueError(f"extend: {count} is more than this corpus supports; expected at most {len(added)}")
    for token, (piece, _, pair) in enumerate(added[:count], len(base.ours)):
        model["vocab"][piece] = token
        if pair:
            model["merges"].append(" ".join(pair) if isinstance(model["merges"][0], str) else pair)
    parts = [base.ours[ids].tolist() for _, ids, _ in added[:count]]
    data = json.dumps(content, ensure_ascii=False).encode()
    rows = len(base.ours) + count
    return wrap_published(base.name, data, base.special, rows, extends=base.starts, parts=base.parts + parts)


def _require_characters(base: Published, model: Mapping[str, Any], special: set[str]) -> None:
    """Require a continuing piece for each character, so that whatever follows a new word can be spelled."""
    mark = model["continuing_subword_prefix"]
    pieces = model["vocab"].keys() - special
    inner = {c for piece in pieces for c in (piece.removeprefix(mark) if piece.startswith(mark) else piece[1:])}
    if lacking := sorted(c for c in inner if mark + c not in model["vocab"]):
        raise ValueError(f"extend: {base.path} lacks the piece {mark}{lacking[0]}; expected extend: 0")


def _merges(
    divided: Mapping[str, list[int]], words: Mapping[str, int], library: Any, count: int
) -> Iterator[tuple[str, list[int], list[str]]]:
    """The most frequent pairs, merged one after another; each makes a piece that does not exist yet.

    The library learns them from words whose characters stand for pieces. It cannot know what they spell, so some of the
    merges make a piece that exists already; these are left out, which is why twice as many are learned.
    """
    used = len({token for ids in divided.values() for token in ids})
    trainer = trainers.BpeTrainer(vocab_size=used + 2 * count, min_frequency=MIN_FREQUENCY, show_progress=False)
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    spelled = ("".join(chr(FIRST + token) for token in ids) + " " for ids in divided.values())
    learner.train_from_iterator((word * words[key] for word, key in zip(spelled, divided, strict=True)), trainer)
    pieces = set(library.get_vocab())
    for pair in json.loads(learner.to_str())["model"]["merges"]:
        parts = [[ord(character) - FIRST for character in side] for side in pair]
        left, right = ("".join(map(library.id_to_token, ids)) for ids in parts)
        if left + right not in pieces:
            pieces.add(left + right)
            yield left + right, parts[0] + parts[1], [left, right]


def grow_weights(weights: Mapping[str, Tensor], like: Mapping[str, Tensor], tokenizer: Tokenizer) -> dict[str, Tensor]:
    """A start's weights in the shapes of ``like``: a piece that it lacks gets the mean of the rows of its parts, and of
    numbers that are not weights (characters) those of ``like``."""

    def filled(tensor: Tensor, own: Tensor) -> Tensor:
        rows = len(own)
        if missing := rows - len(tensor):
            if not tensor.is_floating_point():
                return torch.cat((tensor, own[-missing:]))
            tensor = torch.cat((tensor, tensor.new_empty(missing, *tensor.shape[1:])))
            for token, parts in enumerate(tokenizer.parts[-missing:], rows - missing):
                tensor[token] = tensor[parts].mean(0)
        return tensor

    return {name: filled(tensor, like[name]) if tensor.dim() else tensor for name, tensor in weights.items()}
