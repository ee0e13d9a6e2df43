"""Stage pairs: the minimal pairs of one set. `python -m tasks.stages.pairs <set>`.

It reads the section ``pairs.<set>`` and writes JSON lines, one pair per line, the same bytes on every machine.
"""

import sys
from collections import Counter
from pathlib import Path

from plm_core.benchmarks.pair_sets import PairsConfig, read_pairs, write_pairs
from plm_core.shared import paths
from plm_core.shared.files import atomic_file
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage

SHOWN = 10
"""The most paradigms that the last line names."""


def pairs(name: str) -> None:
    """Read or make the pairs of ``pairs.NAME`` in params.yaml, and write them."""
    section = f"pairs.{name}"
    stage_parameters.section_names("pairs")
    config = stage_parameters.section(section, PairsConfig)
    file = paths.PAIRS / f"{name}.jsonl"
    with stage(f"pairs-{name}", [section], [Path(config.input)]) as run:
        kept, left_out = read_pairs(name, config)
        with atomic_file(file) as new:
            write_pairs(new, kept)
        for line in left_out:
            print(f"warning: left out: {line}", file=sys.stderr, flush=True)
        counts = Counter(pair.paradigm for pair in kept)
        run.metrics |= {"pairs": len(kept), "paradigms": len(counts), "left_out": len(left_out)}
        run.outputs.append(file)
        listed = ", ".join(f"{count:,} {paradigm}" for paradigm, count in counts.items() if paradigm)
        few = f" ({listed})" if listed and len(counts) <= SHOWN else ""
        print(f"{name}: {len(kept):,} pairs of {len(counts)} paradigm(s){few}")


if __name__ == "__main__":
    main(pairs)
