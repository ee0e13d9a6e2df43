"""The `seen` command: the batch that a training run read at a step, decoded.

`python -m tasks.commands.seen NAME --step N`

A batch is a function of the parameters, the token store and the step, so it is read again, not remembered. The
workspace must hold what the checkpoint was trained on, or the answer would be about another training run.
"""

import json
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any

from typer import Argument, Option

from plm_core import checkpoint
from plm_core.config import UserError, digest
from plm_core.configs.architectures import shape
from plm_core.objectives import OBJECTIVES, build_objective
from plm_core.objectives.objective import IGNORED, Batch, Objective
from plm_core.shared import paths
from plm_core.shared.files import CHECKSUMS, sha256_file, verify_checksums
from plm_core.text.samplers import TokenRange
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import PAD, PIECES, Tokenizer
from tasks.parameters import stage_parameters
from tasks.parameters.pretrain_config import pretrain_section
from tasks.runtime.stage import main

SPLIT = "train"
WIDTH = 110


def seen(
    name: Annotated[str, Argument(help="Look at this section below `pretrain` in params.yaml.")],
    step: Annotated[int, Option(help="Show this step, counted from 1, as in the column `step` of the curves.")],
    rows: Annotated[int, Option(help="Show at most this many rows.")] = 3,
    as_json: Annotated[bool, Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Show what a model read at a step of its pretraining: the first rows of the batch.

    Raises:
        UserError: there is no such step, or the workspace has changed since the checkpoint was trained.
    """
    section = f"pretrain.{name}"
    folder = paths.MODELS / name
    values = stage_parameters.read(section)
    config, _ = pretrain_section(name)
    loop = config.training
    # The workspace must hold what the checkpoint was trained on.
    if not folder.is_dir():
        raise UserError(f"{folder}: not trained yet, or still training; `plm status` shows what has to run")
    described = checkpoint.describe(folder)
    remedy = f"`dvc repro pretrain@{name}` trains on what is there now"
    if described.lineage is None:
        raise UserError(f"{folder}: does not say what it was trained on; {remedy}")
    tokenizer_name = stage_parameters.tokenizer_of(name)
    tokenizer = open_tokenizer(paths.TOKENIZERS / tokenizer_name)
    store = TokenStore(paths.TOKENS / tokenizer_name / SPLIT)
    store.require(tokenizer)
    for what, was, now in (
        (paths.TOKENIZERS / tokenizer_name, described.tokenizer_sha256, tokenizer.sha256),
        (store.folder, described.lineage.tokens_sha256, store.digest),
        (f"{stage_parameters.PARAMS} ({section})", described.lineage.parameters_sha256, digest(values)),
    ):
        if was != now:
            raise UserError(f"{folder}: was trained with another {what} ({was[:12]}, now {now[:12]}); {remedy}")
    sizes = shape(described.architecture, described.model, section)
    steps = loop.steps
    source = "training"
    text = store
    if (digest_before := described.lineage.ancestor) and config.carry_on:
        ancestor = paths.ANCESTORS / name / paths.ANCESTOR
        verify_checksums(ancestor)
        if (now := sha256_file(ancestor / CHECKSUMS)) != digest_before:
            raise UserError(f"{folder}: carried on from another {ancestor} ({digest_before[:12]}, now {now[:12]})")
        text, new = config.new_text(store, sizes, ancestor, digest_before)
        steps = config.carry_on.steps if new else 0
        source = "carry_on"
    if not 1 <= step <= steps:
        raise UserError(f"seen.step: {step}; expected 1 to {steps} ({section}.{source}.steps)")
    if rows < 1:
        raise UserError(f"seen.rows: {rows}; expected at least 1")

    # The batch, a function of the parameters, the token store and the step.
    objective = build_objective(config.objective, f"{section}.objective")
    batches = objective.batches(text, config.rows(sizes), loop.batch)
    number = described.lineage.batch(step - 1)
    batch, spans = batches.at(loop.order_seed, number), batches.spans(loop.order_seed, number)
    shown = [
        _row(tokenizer, objective, batch, row) | {"documents": list(_documents(text, spans[row]))}
        for row in range(min(rows, loop.batch))
    ]
    about = {"model": name, "objective": described.objective, "step": step, "steps": steps, "rows": loop.batch}
    about["positions"] = batch.inputs.shape[1]
    if as_json:
        print(json.dumps(about | {"shown": shown}, ensure_ascii=False, indent=2))
        return
    which = f"the first {len(shown)} of {loop.batch} rows of {about['positions']} positions"
    print(f"{name} ({described.objective}), step {step} of {steps}: {which}")
    print(OBJECTIVES[described.objective].legend)
    for entry in shown:
        print(f"\nrow {entry['row']}")
        for part in entry["documents"]:
            first, stop = part["tokens"]
            print(f"  {part['id']}: tokens [{first}, {stop}) of {part['of']}, from position {part['position']}")
        if "b_follows_a" in entry:
            print(f"  B {'follows A' if entry['b_follows_a'] else 'is from elsewhere'}")
        text = entry["text"].replace("\n", "↵")
        print(textwrap.fill(text, WIDTH, initial_indent="  | ", subsequent_indent="  | ", break_on_hyphens=False))


def _row(tokenizer: Tokenizer, objective: Objective, batch: Batch, row: int) -> dict[str, Any]:
    """A row as JSON: its input pieces, what was predicted where, and its text for people."""
    inputs = batch.inputs[row].tolist()
    pairs = zip(*(t[row].flatten().tolist() for t in (batch.target_positions, batch.targets)), strict=True)
    targets = [(place, target) for place, target in pairs if target != IGNORED]
    marks = {}
    # A sentinel stands for several tokens; it is itself a target, but no token of a text.
    written: dict[int, list[int]] = {}
    for place, target in targets:
        written.setdefault(place, []).extend([target] if target < tokenizer.vocab_size else [])
    for number, (place, tokens) in enumerate(written.items(), start=1):
        word = _word(tokenizer, tokens[0]) if len(tokens) == 1 else tokenizer.decode(tokens).replace("\n", "↵")
        if (mark := objective.mark(number, _word(tokenizer, inputs[place]).strip())) is not None:
            marks[place] = " " * word.startswith(" ") + f"<{mark}: {word.strip()}>"

    # As text: ordinary tokens decoded together, padding counted, special tokens by name, and the marks in place.
    def group_of(place: int) -> str | int:
        if place in marks or (inputs[place] < len(PIECES) and inputs[place] != PAD):
            return place
        return "padding" if inputs[place] == PAD else "text"

    text = ""
    for what, group in groupby(range(len(inputs)), group_of):
        places = list(group)
        if what == "text":
            text += tokenizer.decode([inputs[place] for place in places])
        elif what == "padding":
            text += f" {PIECES[PAD]} x {len(places)}"
        else:
            text += marks.get(places[0]) or f" {tokenizer.piece(inputs[places[0]])} "
    return {
        "row": row,
        "inputs": [_piece(tokenizer, token) for token in inputs],
        "predicted": [{"position": place, "token": _piece(tokenizer, target)} for place, target in targets],
        "text": text.strip(),
    } | objective.facts(batch, row)


def _documents(store: TokenStore, spans: list[TokenRange]) -> Iterator[dict[str, Any]]:
    """The part of each document in the spans; its tokens are counted from 0, and EOS is its last."""
    parts = [(number, *span) for span in spans for number in store.within(span[1], span[2])]
    numbers = [number for number, *_ in parts]
    ids = dict(zip(numbers, store.ids(numbers), strict=True))
    for number, position, start, stop in parts:
        begin, end = (int(offset) for offset in store.offsets[number : number + 2])
        first = max(start, begin)
        yield {
            "id": ids[number],
            "document": number,
            "tokens": [first - begin, min(stop, end) - begin],
            "of": end - begin,
            "position": position + first - start,
        }


def _piece(tokenizer: Tokenizer, token: int) -> str:
    """The piece of a token, which may be a sentinel that the tokenizer does not have."""
    return tokenizer.piece(token) if token < tokenizer.vocab_size else "<sentinel>"


def _word(tokenizer: Tokenizer, token: int) -> str:
    """A token for people: without brackets if it is a special one, and as its piece if it has no text of its own."""
    if not len(PIECES) <= token < tokenizer.vocab_size:
        return _piece(tokenizer, token).strip("<>")
    text = tokenizer.decode([token]).replace("\n", "↵")
    return tokenizer.piece(token) if not text.strip() or "\N{REPLACEMENT CHARACTER}" in text else text


if __name__ == "__main__":
    main(seen)
