"""The sources of a task's examples: published files or the hub, the corpus, or a team's own folder; and the splits.

Most official test sets have no labels. Their dev set is the test split here, as for the dev scores in the literature;
the validation split is held out of the training set if none is published. GLUE's files and the hub's dataset give the
same examples. The tasks ``sotu-era``, ``next`` and ``passages`` are made from the corpus itself, split by document.
"""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from plm_core.benchmarks.example_readers import SPLITS, Columns, Example, FileLayout
from plm_core.benchmarks.task import KINDS, ExamplesConfig, GlueTask, own_task
from plm_core.benchmarks.task_table import TASKS, PublishedFiles, SplitFile
from plm_core.benchmarks.verses import CHAPTER, VERSE, verse_rows
from plm_core.config import UserError, did_you_mean
from plm_core.corpus.document import Document, read_documents, sample_row_groups
from plm_core.corpus.normalize import paragraphs, shortened, words_of
from plm_core.corpus.sources.hub_source import HubPin, hub_rows, read_pin
from plm_core.corpus.splits_and_mixtures import hash_position

MIN_WORDS, MAX_WORDS = 15, 200
"""The fewest and the most words of a paragraph: a shorter one says too little, a longer one exceeds a small context."""
PART, SHORTEST_PART = 500, 20
"""Characters of a part of a document without neighbouring paragraphs: the usual number, and the fewest."""
READ_BYTES = 1 << 26
"""The most bytes of a split's text that are read, evenly spread over it: some hundred thousand examples."""
SEAM = 32
"""How many words of each passage a pair has, next to where they meet: these fit into a small context. With two whole
paragraphs a context of 128 tokens would cut four pairs out of five."""
SHORTEST_QUERY = 5
"""The fewest words of a query."""
ENDS = (re.compile(r"[.!?]\s+|[。！？]"), re.compile(r"\s+"))
"""Where a part or a query may end: after a sentence, or otherwise after a word."""
RAGGED = ("wrong_fields", "broken_csv", "empty_text")
"""The reasons for which a row of a ragged file is dropped."""
HELD_OUT = 0.1
MOST_HELD_OUT = 1000
"""The held-out part: a tenth of the training set, but at most this many examples, with the last group whole."""
SHORTEST = 5
"""The fewest words of a text that links examples: "food" or "Who is it?" may occur in unrelated ones."""
COMMON = 0.1
"""A text that occurs in a larger share of the examples is a prompt, and does not make a group."""


def eras(documents: Sequence[Document]) -> Iterator[Example]:
    """One paragraph and the era of its document: class 0 before 1865, 1 from 1865 to 1944, 2 from 1945 on."""
    for document in documents:
        year = document.metadata.get("year")
        if not isinstance(year, int):
            raise UserError(
                f"examples.sotu-era: needs documents with a whole number 'year', but {document.id!r} of source "
                f"{document.source!r} has {sorted(document.metadata)}; expected another task: remove this section, "
                "and its name in finetune.tasks"
            )
        label = (year >= 1865) + (year >= 1945)
        for position, text in _paragraphs(document):
            yield Example(f"{document.id}#{position}", text, None, label, group=document.id)


def next_passages(documents: Sequence[Document]) -> Iterator[Example]:
    """The end of a passage and, by a fair coin, the beginning of the next passage (class 1) or of one from another
    document (class 0).

    Both follow a passage of their own document, so that B alone reveals nothing. Coin and draw are functions of the
    passage's id, so that an example is the same in every run (Devlin et al. 2019, section 3.1, makes its next-sentence
    pairs like this).
    """
    pairs = [(document.id, neighbours) for document in documents if (neighbours := list(_neighbours(document)))]
    for index, (group, own) in enumerate(pairs):
        for identity, a, b in own:
            draw = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:16], "big")
            if draw & 1 or len(pairs) == 1:
                yield Example(identity, a, b, 1, group=group)
            else:
                draw, chosen = divmod(draw >> 1, len(pairs) - 1)
                _, other = pairs[chosen + (chosen >= index)]
                yield Example(identity, a, other[draw % len(other)][2], 0, group=group)


def beginning_queries(documents: Sequence[Document]) -> Iterator[Example]:
    """The beginning of a passage as a query, and the rest of it as what is to be found.

    The query is taken out of the passage, as in the inverse cloze task (Lee et al. 2019, section 4): its first
    sentence or, in a document without passages of several sentences, its first words. A passage is left out if the
    query occurs in its rest.
    """
    for document in documents:
        passages = list(_paragraphs(document)) or list(enumerate(_parts(document.text.strip())))
        for end in ENDS:
            divided = ((position, _divided(" ".join(text.split()), end)) for position, text in passages)
            if usable := [(position, pair) for position, pair in divided if pair]:
                for position, (query, rest) in usable:
                    yield Example(f"{document.id}#{position}", query, rest, 0, group=document.id)
                break


MADE: dict[str, Callable[[Sequence[Document]], Iterator[Example]]] = {
    "sotu-era": eras,
    "next": next_passages,
    "passages": beginning_queries,
}


def read_corpus_task(name: str, folder: Path) -> tuple[dict[str, list[Example]], list[str]]:
    """The examples of each split of the corpus, possibly none, and a warning for each split that is not read whole.

    Raises:
        UserError: a split is missing or damaged, or the documents lack what the task needs.
    """
    made = {}
    warnings = []
    for split in SPLITS:
        table = folder / f"{split}.parquet"
        pieces, share = sample_row_groups(table, READ_BYTES)
        made[split] = list(MADE[name]([document for piece in pieces for document in read_documents(*piece)]))
        if share < 1:
            warnings.append(f"{table}: examples are made from {share:.2%} of it, evenly spread")
    return made, warnings


def _paragraphs(document: Document) -> Iterator[tuple[int, str]]:
    for position, text in enumerate(paragraphs(document.text)):
        if MIN_WORDS <= len(words_of(text)) <= MAX_WORDS:
            yield position, text


def _neighbours(document: Document) -> Iterator[tuple[str, str, str]]:
    """An id, the end of a passage and the beginning of the one that follows it: paragraphs or, in a document without
    such a pair, its parts."""
    pairs = itertools.pairwise(_paragraphs(document))
    adjacent = [(position, a, b) for (position, a), (following, b) in pairs if following == position + 1]
    if not adjacent:
        parts = itertools.pairwise(_parts(document.text.strip()))
        adjacent = [(i, a, b) for i, (a, b) in enumerate(parts) if min(len(a), len(b)) >= SHORTEST_PART]
    return (
        (f"{document.id}#{i}", shortened(" ".join(a.split()), SEAM, last=True), shortened(" ".join(b.split()), SEAM))
        for i, a, b in adjacent
    )


def _divided(text: str, end: re.Pattern[str]) -> tuple[str, str] | None:
    """A text at its first end after a query of enough words; None if too little follows, or the query again."""
    for place in end.finditer(text):
        rest = text[place.end() :].strip()
        if len(words_of(text[: place.end()])) >= SHORTEST_QUERY:
            query = shortened(text[: place.end()].strip(), SEAM)
            return (query, rest) if len(words_of(rest)) >= MIN_WORDS and query not in rest else None
    return None


def _parts(text: str) -> list[str]:
    """A text in two or more parts of similar length."""
    count = max(2, len(text) // PART)
    reach = len(text) // count // 3
    cuts = [_cut(text, len(text) * i // count, reach) for i in range(1, count)]
    return [text[start:end].strip() for start, end in itertools.pairwise([0, *cuts, len(text)])]


def _cut(text: str, middle: int, reach: int) -> int:
    """The end of a sentence, or otherwise of a word, nearest to the middle; the middle if none is in reach."""
    for end in ENDS:
        if ends := [match.end() for match in end.finditer(text, middle - reach, middle + reach)]:
            return min(ends, key=lambda place: abs(place - middle))
    return middle


@dataclass(frozen=True)
class Read:
    """A task with its examples."""

    task: GlueTask
    splits: dict[str, list[Example]]
    """The examples of train, valid and test."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows of each published part, those that were published, and the dropped ones by reason."""
    warnings: list[str] = field(default_factory=list)
    """What people should know about the data, one line each."""


def task_of(name: str, config: ExamplesConfig) -> GlueTask:
    """The task that the section ``examples.<name>`` names or describes; no data is read.

    Raises:
        UserError: the task is unknown, or its description is invalid.
    """
    bare = config == ExamplesConfig(config.input)
    if name not in TASKS:
        close = did_you_mean(name, TASKS) if bare else ""
        unknown = f"unknown task{close}" if close else f"not a task of the table ({', '.join(TASKS)})"
        return own_task(name, config, unknown)
    if not bare:
        raise UserError(
            f"examples.{name}: is a task of the table; expected `input` alone, or another name for your own"
        )
    return TASKS[name].task


def read_source(name: str, config: ExamplesConfig) -> Read:
    """The task of the section ``examples.<name>`` and its examples.

    Raises:
        UserError: the task is unknown, its description is invalid, or the data does not fit it; the message names the
            place.
        OSError: a file cannot be read, or the hub cannot be reached.
    """
    task = task_of(name, config)
    row = TASKS.get(name)
    folder = Path(config.input)
    if row is not None and row.published is not None:
        read = read_published(task, row.published, folder)
    elif row is None and folder.is_file():
        read = read_verses(task, folder, Columns(str(config.a), config.b, str(config.label)))
    elif not folder.is_dir():
        raise UserError(f"{folder}: not a folder; expected one with the examples (examples.{name}.input)")
    elif row is not None:
        splits, warnings = read_corpus_task(name, folder)
        read = Read(task, splits, warnings=warnings)
    else:
        columns = Columns(str(config.a), config.b, str(config.label), config.id, tuple(config.choices), config.group)
        read = Read(task, read_own(task, folder, columns))
    splits = read.splits
    if held_out := "valid" not in splits:
        splits["train"], splits["valid"] = hold_out(splits["train"])
    for split in SPLITS:
        if not splits[split]:
            raise UserError(
                f"{config.input}: gives no example for {split} (examples.{name}); expected at least one; add to it, or "
                f"take {name} out of examples and finetune.tasks"
            )
    # Every class, and every type of entity, must occur in the training set.
    needed = KINDS[task.kind].to_train_on(task)
    trained, held = ({i for e in splits[split] for i in (e.tags or (e.label,))} for split in ("train", "valid"))
    for label in needed:
        if (place := task.labels.index(label)) not in trained:
            why = " (all of them were held out for validation)" if held_out and place in held else ""
            raise UserError(
                f"{config.input}: no example of the class {label!r} to train on{why}; expected some of each of "
                f"{', '.join(needed)} (examples.{name})"
            )
    return Read(task, {split: assign_groups(splits[split]) for split in SPLITS}, read.counts, read.warnings)


def read_own(task: GlueTask, folder: Path, columns: Columns) -> dict[str, list[Example]]:
    """The examples of each split of a team's own task, in the layout of its kind; of ``valid`` only if there is a file.

    Raises:
        UserError: a file is missing or holds no example, or a row is not an example.
    """
    kind = KINDS[task.kind]
    reader = kind.reader(task, FileLayout(columns, {label: i for i, label in enumerate(task.labels)}))
    suffixes = tuple(dict.fromkeys((*kind.formats, *([f".{columns.a}"] * kind.of_lines))))
    splits: dict[str, list[Example]] = {}
    for split in SPLITS:
        names = ("valid", "dev") if split == "valid" else (split,)
        files = [path for name in names for suffix in suffixes if (path := folder / f"{name}{suffix}").is_file()]
        if len(files) > 1:
            raise UserError(f"{files[0]}: {files[1].name} exists too; expected one file of this split")
        if not files and split != "valid":
            expected = ", ".join(f"{split}{suffix}" for suffix in suffixes)
            one_of = "one of " if len(suffixes) > 1 else ""
            raise UserError(f"{folder}: has no file {split}; expected {one_of}{expected}")
        for file in files:
            splits[split] = list(reader.read(reader.open(file), split))
            if not splits[split]:
                raise UserError(f"{file}: no example in it; expected at least one")
    return splits


def read_verses(task: GlueTask, manifest: Path, columns: Columns) -> Read:
    """The examples of each split from two translations of a manifest; a verse is an example, a chapter a group.

    Raises:
        UserError: the manifest or a package is not as expected, or a verse is not an example.
    """
    columns = replace(columns, id=VERSE, group=CHAPTER)
    rows, dropped = verse_rows(manifest, (columns.a, columns.label))
    reader = KINDS[task.kind].reader(task, FileLayout(columns, {}))
    return Read(task, {split: list(reader.read(some, split)) for split, some in rows.items()}, dropped)


def read_published(task: GlueTask, published: PublishedFiles, source: Path) -> Read:
    """The examples of the splits from a folder, or from the hub if ``source`` is a manifest.

    Raises:
        UserError: a file is missing, a row is not an example, or the hub does not have what the manifest says.
        OSError: the hub cannot be reached.
    """
    files = source.is_dir()
    columns = published.columns if files else published.hub
    if columns is None and not files:
        raise UserError(f"{source}: not a folder; expected one with the files of {published.folder}")
    codes = {str(i) if files and published.coded else label: i for i, label in enumerate(task.labels)}
    layout = FileLayout(columns, codes, RAGGED if published.ragged else (), iob1=True)
    reader = KINDS[task.kind].reader(task, layout)
    splits: dict[str, list[Example]] = {}
    counts: dict[str, int] = {}
    warnings = []
    pin = None if files else read_pin(HubPin, source)
    for part in published.parts:
        if pin is None:
            rows = reader.open(_file(part, published, source), published.header)
        else:
            place = f"{source}: {pin.dataset} {task.name} {part.hub}"
            on_hub = enumerate(hub_rows(pin, task.name, part.hub, source, named=True), start=1)
            rows = ((f"{place}:{number}", row) for number, row in on_hub)
        examples = list(reader.read(rows, part.file, part.subset))
        splits.setdefault(part.file if part.file in ("train", "valid") else "test", []).extend(examples)
        # The rows that the part has and should have; a row with an empty text counts.
        dropped = {reason: n for (name, reason), n in sorted(reader.dropped.items()) if name == part.file}
        many = len(examples) + dropped.get("empty_text", 0)
        counts |= {f"{part.file}_rows": many, f"{part.file}_rows_published": part.rows}
        counts |= {f"{part.file}_dropped_{reason}": n for reason, n in dropped.items()}
        if many != part.rows:
            warnings.append(
                f"{task.name}: {part.file} has {many:,} rows, but {part.rows:,} are published; "
                "scores are not comparable with the literature"
            )
        if dropped:
            reasons = ", ".join(f"{n} for {reason}" for reason, n in dropped.items())
            warnings.append(f"{task.name}: {part.file}: rows dropped, as official readers do: {reasons}")
    return Read(task, splits, counts | reader.counts, warnings)


def _file(part: SplitFile, published: PublishedFiles, folder: Path) -> Path:
    """The existing file among the names that the part's file may have."""
    files = [folder / name for name in part.names or (f"{part.file}.tsv",)]
    for file in files:
        if file.is_file():
            return file
    also = "".join(f" (or {other.name})" for other in files[1:])
    raise UserError(
        f"{files[0]}{also}: missing; expected the official layout, the files of its folder {published.folder}"
    )


def hold_out(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Split the training set into train and valid, each in its original order.

    Valid has the examples whose hash is in the lowest tenth of the range, at most the 1,000 lowest, and at least one.
    The hash is that of the group that the source gives, or otherwise of the id, so that no group is on both sides
    unless there is only one. So an example's side depends on that name alone: additions move no example from train to
    valid, and none from valid to train before there are 1,000.
    """
    positions = [hash_position(f"valid/{e.group or e.id}") for e in examples]
    if len(set(positions)) == 1:
        positions = [hash_position(f"valid/{e.id}") for e in examples]
    ranked = sorted(positions)
    last = max([*ranked[:1], *(place for place in ranked[:MOST_HELD_OUT] if place < HELD_OUT)], default=0.0)
    sides = list(zip(examples, positions, strict=True))
    return [e for e, place in sides if place > last], [e for e, place in sides if place <= last]


def assign_groups(examples: Sequence[Example]) -> list[Example]:
    """The examples with their groups, each named after its first example; a single example has none.

    A premise of MNLI occurs in three examples, a question of QQP in many; counted one by one, they make a difference
    look more certain than it is. A group given by the source stays. Other examples are grouped if they have a text in
    common, directly or through others; the choices of a multiple choice do not count.
    """
    # Checking the parameters imports the sources, and should not wait for scipy.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    both = ([] if example.group else [example.a, example.b or ""] for example in examples)
    texts = [{text for text in some if len(words_of(text)) >= SHORTEST} for some in both]
    # Examples and texts are the nodes of a graph; what an example says is an edge.
    occurrences = Counter(text for some in texts for text in some)
    most = max(3.0, COMMON * len(texts))
    telling = (text for text, count in occurrences.items() if count <= most)
    nodes = {text: len(texts) + i for i, text in enumerate(telling)}
    edges = [(i, nodes[text]) for i, some in enumerate(texts) for text in some if text in nodes]
    rows, columns = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    size = len(texts) + len(nodes)
    graph = coo_array((np.ones(len(edges)), (rows, columns)), shape=(size, size))
    numbers = connected_components(graph, directed=False)[1][: len(texts)].tolist()
    sizes = Counter(numbers)
    firsts: dict[int, str] = {}
    result = []
    for example, number in zip(examples, numbers, strict=True):
        first = firsts.setdefault(number, example.id)
        result.append(example if example.group or sizes[number] == 1 else replace(example, group=first))
    return result


def shared_text_counts(task: GlueTask, splits: Mapping[str, Sequence[Example]]) -> dict[str, int]:
    """The number of examples of test (and valid) whose exact texts are in train (or valid) too, whatever their labels,
    and of groups of test that are also in train.

    If the order of the two texts does not matter, a pair counts in either order.
    """
    texts = {split: {_texts(task, e) for e in examples} for split, examples in splits.items()}
    groups = {split: {e.group for e in examples if e.group} for split, examples in splits.items()}
    counted = {
        f"{split}_also_in_{other}": sum(_texts(task, e) in texts[other] for e in splits[split])
        for split, other in (("test", "train"), ("test", "valid"), ("valid", "train"))
    }
    return counted | {"test_groups_also_in_train": len(groups["test"] & groups["train"])}


def counts(task: GlueTask, split: str, examples: Iterable[Example]) -> dict[str, float | int]:
    """The examples of a split: how many, by subset, and what their kind counts."""
    examples = list(examples)
    figures: dict[str, float | int] = {f"{split}_examples": len(examples)}
    subsets = Counter(e.subset for e in examples if e.subset)
    figures |= {f"{split}_{subset}_examples": n for subset, n in subsets.items()}
    return figures | {f"{split}_{name}": n for name, n in KINDS[task.kind].counts(task, examples).items()}


def _texts(task: GlueTask, example: Example) -> tuple[str, ...]:
    return tuple(sorted(example.texts)) if task.symmetric else example.texts
