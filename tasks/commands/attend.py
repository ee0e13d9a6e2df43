"""The `attend` command: a picture of what each head attends to.

`python -m tasks.commands.attend TEXT --checkpoint DIR`
"""

from pathlib import Path
from typing import Annotated

import torch
from typer import Argument, Option

from plm_core import checkpoint
from plm_core.attention_maps import attention_maps, cross_attention_maps
from plm_core.config import UserError
from plm_core.finetuning.input_formats import input_format_of
from plm_core.objectives import OBJECTIVES
from plm_core.training.device import prepare
from tasks.runtime.stage import main

MOST_TOKENS = 48
"""More could not be told apart in the picture."""
PITCH, SMALLEST = 0.125, 1.6
"""Inches: from token to token, and the shortest side of a map."""


def attend(
    text: Annotated[str, Argument(help="Plot the attention for this text.")],
    folder: Annotated[Path, Option("--checkpoint", help="Use the checkpoint in this folder.")],
    out: Annotated[Path, Option(help="Write this PNG file.")] = Path("attention.png"),
    written: Annotated[str, Option(help="Plot how an encoder-decoder attends to the text to write this one.")] = "",
) -> None:
    """Plot the attention maps of a text: one row of maps per layer, one column per head.

    Raises:
        UserError: the checkpoint is damaged, or a text has no tokens, or too many; or ``written`` is given for a model
            without a decoder of its own.
    """
    loaded = checkpoint.load(folder, prepare().device)
    before, after = OBJECTIVES[loaded.config.objective].frame
    rows = []
    for parameter, given in {"text": text, "written": written}.items():
        ids = [*before, *loaded.tokenizer.encode(given), *after]
        if parameter == "text" and len(ids) == len(before) + len(after):
            raise UserError("attend.text: found no tokens; expected text")
        most = min(MOST_TOKENS, loaded.model.config.context)
        if len(ids) > most:
            raise UserError(
                f"attend.{parameter}: found {len(ids)} tokens, special ones included; expected at most {most}"
            )
        rows.append(ids)
    if written and not hasattr(loaded.model, "decode"):
        raise UserError("attend.written: given for a model that is no encoder-decoder; expected it left out")
    if out.suffix != ".png" or not out.parent.is_dir():
        raise UserError(f"attend.out: found {out}; expected a file name that ends in .png, in an existing folder")
    device = next(loaded.model.parameters()).device
    source, target = (torch.tensor([ids], device=device) for ids in rows)
    if written:
        weights = cross_attention_maps(loaded.model, source, target)
    else:
        weights = attention_maps(loaded.model, source, input_format_of(loaded.config.objective, loaded.config.model))
    maps = weights.float().cpu().numpy()
    # A space is shown as an open box, a newline as an arrow.
    pieces = [[loaded.tokenizer.piece(i).replace("▁", "␣").replace("\n", "↵") for i in ids] for ids in rows]
    columns = pieces[0]
    labels = pieces[-1] if written else columns

    # A grid of maps [L, H, Q, K], whose left and lower edges are labelled with the tokens.
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import colors, pyplot

    L, H, Q, K = maps.shape
    side = max(SMALLEST, PITCH * max(Q, K))
    width, height = side * H + 2.2, side * L + 1.8
    # In points: a large grid is viewed from further away, but token labels are always read up close.
    name_size = max(9.0, 4 * side)
    title_size = min(40.0, max(11.0, width))
    figure, grid = pyplot.subplots(L, H, figsize=(width, height), squeeze=False, layout="constrained")
    # Most weights are small: a square-root scale makes them visible, and the colour bar shows it.
    scale = colors.PowerNorm(0.5, 0, 1)
    for layer in range(L):
        for head in range(H):
            axes = grid[layer, head]
            image = axes.imshow(maps[layer, head], cmap="Blues", norm=scale, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.tick_params(length=0, labelsize=7, labelfontfamily="monospace")
            if layer == 0:
                axes.set_title(f"head {head + 1}", fontsize=name_size)
            if head == 0:
                axes.set_ylabel(f"layer {layer + 1}", fontsize=name_size)
                axes.set_yticks(range(Q), labels, parse_math=False)
            if layer == L - 1:
                axes.set_xticks(range(K), columns, rotation=90, parse_math=False)
    bar = figure.colorbar(image, ax=grid, shrink=min(1.0, max(0.25, 3 / (side * L))), aspect=20, pad=0.01)
    bar.set_label("weight", fontsize=name_size)
    bar.set_ticks([0, 0.05, 0.2, 0.5, 1])
    bar.ax.tick_params(labelsize=name_size - 1)
    figure.suptitle(f"{loaded.config.architecture}, {loaded.config.objective}: attention weights", fontsize=title_size)
    figure.supxlabel("the row's token attends to the column's token", fontsize=name_size)
    figure.savefig(out, dpi=110)
    pyplot.close(figure)
    print(f"{out}: {L} layer(s), {H} head(s), {K} tokens")


if __name__ == "__main__":
    main(attend, gpus=1)
