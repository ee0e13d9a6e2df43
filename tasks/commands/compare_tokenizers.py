"""The `tokenizer compare` command: kinds and sizes side by side. `python -m tasks.commands.compare_tokenizers N ...`.

Each is trained on the workspace's training split, or given, and measured on samples of the training and validation
splits; nothing is written. Character coverage is that of the tokenizer of the first model in the parameters.
"""

import json
import sys
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Column, Table
from typer import Argument, Option

from plm_core.config import UserError, from_dict
from plm_core.corpus.document import Texts, sample_row_groups
from plm_core.shared import paths
from plm_core.shared.options import TOKENIZERS
from plm_core.text.tokenizer_kinds import open_tokenizer, read_tokenizer, train_tokenizer
from plm_core.text.tokenizers import TokenizerConfig
from plm_core.text.vocabulary_quality import RARE, SAMPLE, comparison_words, costly_words, measure, sample, split_word
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main

COLUMNS = {
    "bytes per token": ("bytes_per_token", "{:.3f}"),
    "tokens per word": ("fertility", "{:.3f}"),
    "words in pieces": ("fragmented_share", "{:.1%}"),
    "unknown": ("unknown_rate", "{:.3%}"),
    f"seen < {RARE} times": ("rare_share", "{:.1%}"),
    "never seen": ("unused_share", "{:.1%}"),
    "time": ("training_seconds", "{:.1f} s"),
}
"""The table's headings, with the name and the format of each number."""


def compare(
    sizes: Annotated[list[int] | None, Argument(help="Train vocabularies of these sizes.")] = None,
    kind: Annotated[list[str] | None, Option(show_default="all", help="Train this kind. May be repeated.")] = None,
    lowercase: Annotated[bool, Option("--lowercase", help="Train WordPiece as in BERT's uncased models.")] = False,
    most: Annotated[int | None, Option("--sample", help="Train on a sample of about this many characters.")] = None,
    made: Annotated[list[Path] | None, Option("--given", help="Measure this one too: a file or a folder.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Train tokenizers of several kinds and sizes; measure these and given ones; print tables, or all of it as JSON.

    Raises:
        UserError: nothing is asked for, there is no such kind, a split or a tokenizer is missing, or the validation
            split holds no text.
    """
    if not (sizes or made):
        raise UserError("tokenizer compare: found no tokenizer; expected sizes to train, or --given")
    if most is not None and most < 1:
        raise UserError(f"tokenizer compare: --sample {most}; expected at least 1 character")
    if unknown := sorted({*(kind or ())} - {*TOKENIZERS}):
        raise UserError(f"tokenizer compare: --kind {unknown[0]}; expected {', '.join(TOKENIZERS)}")
    first = stage_parameters.section(f"tokenizers.{stage_parameters.tokenizer_of('')}", TokenizerConfig)
    whole, unread = (
        Texts(sample_row_groups(paths.CORPUS / f"{split}.parquet", first.learned_bytes)[0])
        for split in ("train", "valid")
    )
    unseen = sample(unread)
    if not any(text.split() for text in unseen):
        raise UserError(f"{paths.CORPUS / 'valid.parquet'}: holds no words; expected held-out text")
    texts = whole if most is None else sample(whole, most)
    words = comparison_words(unseen)
    seen = sample(whole)
    rows = []
    for tokenizer in map(open_tokenizer, made or ()):
        row: dict[str, Any] = {"kind": tokenizer.path.parent.name, "vocab_size": tokenizer.vocab_size}
        row |= asdict(measure(tokenizer, seen, unseen)) | {
            "splits": {word: split_word(tokenizer, word) for word in words}
        }
        costly = costly_words(tokenizer, seen)
        row["costly"] = [
            {"word": word, "times": times, "pieces": split_word(tokenizer, word)} for word, times in costly
        ]
        rows.append(row)
    for name, size in product(kind or TOKENIZERS, sizes or ()):
        section = {"kind": name, "vocab_size": size, "lowercase": lowercase and name == "wordpiece"}
        row = {"kind": name, "vocab_size": size}
        start = time.perf_counter()
        try:
            config = from_dict(TokenizerConfig, {"character_coverage": first.character_coverage} | section, "tokenizer")
            tokenizer = read_tokenizer(Path(name), train_tokenizer(texts, config))
        except (UserError, ValueError) as error:  # such as a corpus that does not support this size
            row["refused"] = str(error)
        else:
            row["training_seconds"] = round(time.perf_counter() - start, 2)
            row |= asdict(measure(tokenizer, seen, unseen))
            row["splits"] = {word: split_word(tokenizer, word) for word in words}
        rows.append(row)
        print(f"{name}, {size}: {row.get('refused', 'done')}", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"rare": RARE, "sample_characters": SAMPLE, "words": words, "tokenizers": rows}, indent=2))
        return

    console = Console()

    def names() -> list[Column]:  # a column belongs to one table
        return [Column("kind", no_wrap=True), Column("size", no_wrap=True, justify="right")]

    table = Table(*names(), *COLUMNS, title="Tokenizers on the validation split")
    for row in rows:
        cells = [text.format(row[name]) if name in row else "" for name, text in COLUMNS.values()]
        table.add_row(row["kind"], f"{row['vocab_size']:,}", *cells)
    console.print(table)
    for row in rows:
        if "refused" in row:
            console.print(f"{row['kind']}, {row['vocab_size']:,}: {row['refused']}")
    if any(row["kind"] == "wordpiece" for row in rows):
        console.print("wordpiece spends no token on whitespace and one on an unknown word: its numbers flatter it.")
    for row in (row for row in rows if "costly" in row):
        costs = Table(
            "word", "times", "pieces", title=f"What costs {row['kind']} the most tokens in the training split"
        )
        for cost in row["costly"]:
            costs.add_row(cost["word"], f"{cost['times']:,}", cost["pieces"])
        console.print(costs)
    # One row per word and tokenizer: pieces are read from left to right, whatever the width of the terminal.
    splits = Table(Column("word", no_wrap=True), *names(), "pieces", title="The same words, split into pieces")
    for word in words:
        for number, row in enumerate(row for row in rows if "splits" in row):
            splits.add_row("" if number else word, row["kind"], f"{row['vocab_size']:,}", row["splits"][word])
        splits.add_section()
    console.print(splits)


if __name__ == "__main__":
    main(compare)
