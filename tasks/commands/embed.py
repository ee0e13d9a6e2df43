"""The `embed` command: texts as vectors. `python -m tasks.commands.embed FILE --checkpoint DIR --output OUT.parquet`.

Parts of the file are embedded one by one, and kept beside the output until all are there: after an interruption the
same command continues with the first missing part. Which texts are in a part depends on the file alone, so the output
always has the same bytes.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from typer import Argument, Option

from plm_core import checkpoint
from plm_core.benchmarks.example_readers import LONGEST, Example, text_of
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError, digest, from_dict
from plm_core.corpus.document import Row, read_rows, row_writer
from plm_core.corpus.records import READABLE, format_of, records
from plm_core.corpus.removals import Refused
from plm_core.finetuning.classifier import Classifier, new_features, predict
from plm_core.finetuning.featurize import encoded
from plm_core.finetuning.finetune_config import FeaturesConfig
from plm_core.finetuning.input_formats import input_format_of
from plm_core.shared.files import sha256_file
from plm_core.training.device import prepare
from tasks.runtime.stage import main

TASK = TASKS["passages"].task
SCHEMA = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32())), ("cut", pa.bool_())])
TEXTS = 1024
"""A part ends after this many texts,"""
CHARACTERS = 1 << 22
"""or as soon as they have this many characters."""
BATCH = 32


def embed(
    file: Annotated[Path, Argument(help="Embed the texts of this file.")],
    folder: Annotated[Path, Option("--checkpoint", help="Use the checkpoint in this folder.")],
    output: Annotated[Path, Option(help="Write this Parquet file.")],
    text: Annotated[str, Option(help="Read the text from this column.")] = "text",
) -> None:
    """Write a vector of length 1 for each text: the mean of the model's states for its tokens.

    The columns are ``id`` (the column of this name, or the number of the line or row), ``vector`` (float32) and
    ``cut`` (whether the text was longer than the model's context, and its end was not read).

    Raises:
        UserError: the checkpoint is damaged, or a record of the file has no text; the message names its line.
    """
    if format_of(file) is None:
        raise UserError(f"{file}: no text that can be read. {READABLE}")
    loaded = checkpoint.load(folder, device := prepare().device)
    input_format = input_format_of(loaded.config.objective, loaded.config.model)
    given = (loaded.config.head or {}).get("features")
    features = new_features(loaded, from_dict(FeaturesConfig, given, f"{folder}.head.features")) if given else None
    model = Classifier(loaded.model, input_format, TASK.kind, 0, 0.0, features=features).to(device)
    # Parts of another file or model are of no use to this one.
    key = digest(sha256_file(file), loaded.digest, text)[:16]
    parts = output.with_name(f".{output.name}.{key}")
    for other in output.parent.glob(f".{output.name}.{'[0-9a-f]' * len(key)}"):
        if other != parts and other.is_dir():
            shutil.rmtree(other)
    parts.mkdir(parents=True, exist_ok=True)
    kept = []
    for number, examples in enumerate(_parts(file, text)):
        kept.append(part := parts / f"{number:06}.parquet")
        if not part.exists():
            rows = encoded(examples, TASK, input_format, loaded.tokenizer, loaded.model.config.context).encoded
            vectors = predict(model, rows, BATCH, device).answers
            with row_writer(part, SCHEMA, _same) as writer:
                for example, row, (vector,) in zip(examples, rows, vectors, strict=True):
                    writer.write({"id": example.id, "vector": vector, "cut": row.cut})
            print(f"part {number}: {len(examples):,} texts", flush=True)
    cut = 0
    with row_writer(output, SCHEMA, _same) as writer:
        for part in kept:
            for embedded in read_rows(part, SCHEMA):
                writer.write(embedded)
                cut += embedded["cut"]
    shutil.rmtree(parts)
    width = features.width if features else loaded.model.config.width
    print(f"{output}: {writer.count:,} vectors of {width}; {cut:,} texts were cut")


def _same(row: Row) -> Row:
    return row


def _parts(file: Path, column: str) -> Iterator[list[Example]]:
    """The texts of a file, as many at once as a part holds; a line of a .txt file is a text."""
    held: list[Example] = []
    for record in records(file, LONGEST, split="lines"):
        content = {column: record.content} if isinstance(record.content, str) else record.content
        try:
            if isinstance(content, Refused):
                raise content
            identity = str(content.get("id", record.number))
            held.append(Example(identity, text_of(content.get(column), column), None, 0))
        except Refused as refused:
            raise UserError(f"{file}:{record.number}: {refused.detail}") from None
        if len(held) == TEXTS or sum(len(example.a) for example in held) >= CHARACTERS:
            yield held
            held = []
    if held:
        yield held


if __name__ == "__main__":
    main(embed, gpus=1)
