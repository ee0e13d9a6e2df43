"""Tokenizers of published models, used through their own library as they are, with this project's ids.

Published vocabularies put special tokens anywhere, or have fewer than this project. Here the special tokens of
``PIECES`` get the first ids, and everything else follows in its old order, so that objectives, stores and
evaluation need not know where a tokenizer comes from. A special token that a vocabulary lacks gets an id of its own.
"""

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from plm_core.config import UserError
from plm_core.text.hf_tokenizers import BYTES, byte_ends, display_bytes, to_bytes
from plm_core.text.tokenizers import PIECES, PUBLISHED_FILE, UNK, Spelling, Tokenizer

KEY = "published"
PROBE = " A  b\n½\ue000\t"
"""A text that shows whether a tokenizer keeps every character."""


class Published(Tokenizer):
    """A tokenizer of the library ``tokenizers`` or of sentencepiece, whose ids are permuted."""

    file = PUBLISHED_FILE
    kind = "published"

    def __init__(self, path: Path, data: bytes) -> None:
        """UserError if it is not a file of ``wrap_published``."""
        super().__init__(path, data)
        try:
            own = json.loads(data)[KEY]
            content = base64.b64decode(own["content"]) if own["base64"] else own["content"].encode()
            self.library = open_library_tokenizer(own["file"], content)
            given = [None if token is None else int(token) for token in own["special"]]
            rows = int(own["rows"])
            self.starts = (*map(str, own.get("extends", [])), self.sha256)
            self.parts = [[int(token) for token in parts] for parts in own.get("parts", [])]
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}: not a published tokenizer as `plm import` writes it ({error})") from error
        self.special = given
        """The published id of each of ``PIECES``, None if it has none."""
        self.name: str = own["file"]
        """The name of the published file."""
        self.continues = self.library.continues
        self.content = content
        """Its bytes."""

        # Special tokens first, then all other rows of the published vocabulary.
        mapped = [token for token in given if token is not None]
        if len(given) != len(PIECES) or len(set(mapped)) != len(mapped) or not set(mapped) <= {*range(rows)}:
            raise UserError(
                f"{path}: special: found {given}; expected {len(PIECES)} different ids below {rows}, or null"
            )
        others = np.setdiff1d(np.arange(rows), mapped)
        self.theirs = np.concatenate([[-1 if token is None else token for token in given], others])
        """The published id of each of our ids ``[V]``; -1 for special tokens that the vocabulary lacks."""
        self.ours = np.full(rows, UNK, dtype=np.int32)
        """Our id of each published id."""
        added = enumerate(self.parts, len(self.theirs) - len(self.parts))
        if any(not parts or min(parts) < 0 or max(parts) >= token for token, parts in added):
            raise UserError(f"{path}: parts: expected smaller ids than its own for each piece that was added")
        shared = self.theirs >= 0
        self.ours[self.theirs[shared]] = np.flatnonzero(shared)
        self.lossless = self.decode(self.encode(PROBE)) == PROBE  # type: ignore[misc]

    @property
    def vocab_size(self) -> int:
        return len(self.theirs)

    def decode(self, ids: Sequence[int]) -> str:
        return self.library.decode([int(self.theirs[i]) for i in ids if i >= len(PIECES)])

    def piece(self, token: int) -> str:
        return PIECES[token] if token < len(PIECES) else self.library.piece(int(self.theirs[token]))

    def _encode(self, texts: list[str]) -> Sequence[Sequence[int]]:
        return [self._spelled(self.library.ids(text)).tolist() for text in texts]

    def _spelled(self, theirs: Sequence[int]) -> np.ndarray:
        """Our ids; a special token, which a few models find in a text, is an unknown word there."""
        ids = self.ours[np.asarray(theirs, dtype=np.int64)]
        return np.where(ids < len(PIECES), UNK, ids)

    def _spell(self, text: str) -> Spelling:
        """A token also covers what is dropped before it, and the last one what is dropped after it."""
        theirs, stops = self.library.spans(text)
        if not theirs:
            return Spelling([], [], [])
        reached = np.maximum.accumulate([*stops[:-1], len(text)])
        before = np.concatenate([[0], reached[:-1]])
        # A word begins where the covered part begins with a space, or follows one; later bytes of a character do not.
        starts = [
            bool(end > begin and (begin == 0 or text[begin - 1].isspace() or text[begin].isspace()))
            for begin, end in zip(before, reached, strict=True)
        ]
        return Spelling(self._spelled(theirs).tolist(), np.diff(byte_ends(text)[reached], prepend=0).tolist(), starts)


class _Library:
    """A ``tokenizer.json``, without its frame, truncation and padding."""

    def __init__(self, content: str) -> None:
        with _refusing("not a file of the library tokenizers"):
            self.model = tokenizers.Tokenizer.from_str(content)
        self.model.no_truncation()
        self.model.no_padding()
        # The name of a special token in a text is ordinary text.
        self.model.encode_special_tokens = True
        steps = json.dumps([json.loads(content).get(step) for step in ("pre_tokenizer", "decoder")])
        self.byte_level = '"ByteLevel"' in steps
        model = json.loads(content)["model"]
        # A word never begins with a space, so that each piece of a vocabulary of words begins one.
        self.continues = {"WordPiece": model.get("continuing_subword_prefix"), "WordLevel": " "}.get(model.get("type"))

    @property
    def highest(self) -> int:
        return max(self.model.get_vocab(with_added_tokens=True).values())

    def find(self, piece: str) -> int | None:
        return self.model.token_to_id(piece)

    def ids(self, text: str) -> list[int]:
        # One at a time: the library divides what it is given among all cores.
        return self.model.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def spans(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self.model.encode(text, add_special_tokens=False)
        return encoding.ids, [stop for _, stop in encoding.offsets]

    def decode(self, ids: list[int]) -> str:
        return self.model.decode(ids, skip_special_tokens=False)

    def piece(self, token: int) -> str:
        piece = self.model.id_to_token(token)
        if piece is None:
            return f"<unused {token}>"
        if not self.byte_level or not {*piece} <= BYTES.keys():
            return piece
        return display_bytes(bytes(map(BYTES.__getitem__, piece)))


class _Pieces:
    """A model of sentencepiece."""

    continues = None

    def __init__(self, content: bytes) -> None:
        try:
            self.model = sentencepiece.SentencePieceProcessor(model_proto=content)
        except RuntimeError as error:
            raise UserError(f"not a sentencepiece model ({error})") from error

    @property
    def highest(self) -> int:
        return len(self.model) - 1

    def find(self, piece: str) -> int | None:
        token: int = self.model.piece_to_id(piece)
        return token if self.model.id_to_piece(token) == piece else None

    def ids(self, text: str) -> list[int]:
        return self.model.encode(text)

    def spans(self, text: str) -> tuple[list[int], list[int]]:
        pieces = self.model.encode(text, return_type="proto").pieces
        return [piece.id for piece in pieces], list(accumulate(len(piece.surface) for piece in pieces))

    def decode(self, ids: list[int]) -> str:
        return self.model.decode(ids)

    def piece(self, token: int) -> str:
        return self.model.id_to_piece(token) if token < len(self.model) else f"<unused {token}>"


def open_library_tokenizer(name: str, content: bytes) -> _Library | _Pieces:
    """The library's own tokenizer of a published file; UserError if the library does not read it."""
    return _Library(content.decode()) if name.endswith(".json") else _Pieces(content)


@contextlib.contextmanager
def _refusing(message: str) -> Iterator[None]:
    """Turn what the library tokenizers cannot read into a UserError; the library raises a bare ``Exception``."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise UserError(f"{message} ({error})") from error


def json_from_vocab_txt(vocabulary: Path, config: Mapping[str, Any]) -> bytes:
    """The ``tokenizer.json`` of BERT's ``vocab.txt``; ``config`` is ``tokenizer_config.json``."""
    with _refusing(f"{vocabulary}: not a vocabulary"):
        library = tokenizers.Tokenizer(models.WordPiece.from_file(str(vocabulary), unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library.to_str().encode()


def json_from_merges(vocabulary: Path, merges: Path, config: Mapping[str, Any]) -> bytes:
    """The ``tokenizer.json`` of ``vocab.json`` and ``merges.txt``, as GPT-2 and the first GPT have them; ``config`` is
    ``tokenizer_config.json``."""
    with _refusing(f"{vocabulary}: not a vocabulary, or {merges.name} are not its merges"):
        pieces, pairs = models.BPE.read_file(str(vocabulary), str(merges))
        if "Ġ" not in pieces:
            # Without the byte of a space: lower-case words, cut as BERT's, that end in a mark (Radford et al. 2018).
            library = tokenizers.Tokenizer(models.BPE(pieces, pairs, unk_token="<unk>", end_of_word_suffix="</w>"))
            library.normalizer = normalizers.BertNormalizer(lowercase=True)
            library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            library.decoder = decoders.BPEDecoder(suffix="</w>")
            return library.to_str().encode()
        library = tokenizers.Tokenizer(models.BPE(pieces, pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
    library.decoder = decoders.ByteLevel()
    return library.to_str().encode()


def json_from_words(words: Mapping[str, int], unknown: str) -> bytes:
    """The ``tokenizer.json`` of a vocabulary of words and their ids: a text is cut at its spaces."""
    library = tokenizers.Tokenizer(models.WordLevel(dict(words), unk_token=unknown))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return library.to_str().encode()


def wrap_published(name: str, content: bytes, special: Sequence[int | None], rows: int, **added: Any) -> bytes:
    """The file of a published tokenizer.

    ``name`` and ``content`` are the published file: ``tokenizer.json``, or a sentencepiece model. ``special`` holds the
    published id of each of ``PIECES``, None if it has none; ``rows`` is the number of embeddings of its model,
    at least the number of its pieces. ``added`` are ``extends`` and ``parts`` of one that extends others: all of
    ``Tokenizer.starts`` but its own, and ``Tokenizer.parts``.
    """
    binary = not name.endswith(".json")
    own: dict[str, Any] = {"file": name, "base64": binary, "special": list(special), "rows": rows} | added
    own["content"] = base64.b64encode(content).decode() if binary else content.decode()
    return to_bytes({KEY: own})
