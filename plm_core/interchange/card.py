"""The model card of an exported checkpoint: what it is, by what it was judged, how to load it."""

from dataclasses import asdict

from plm_core.checkpoint import Loaded
from plm_core.evaluation.likelihood import named
from plm_core.interchange import tokenizer
from plm_core.interchange.family import Family
from plm_core.objectives import OBJECTIVES


def card(loaded: Loaded, family: Family) -> str:
    """The text of ``README.md``."""
    objective = loaded.config.objective
    likelihood = OBJECTIVES[objective].likelihood
    quantity = named(likelihood.name, loaded.tokenizer)
    sizes = asdict(loaded.model.config)
    parameters = sum(p.numel() for p in loaded.model.parameters())
    rows = "\n".join(f"| {name} | {value} |" for name, value in sizes.items())
    deviations = "\n".join(f"- {line}" for line in tokenizer.deviations(loaded.tokenizer))
    return f"""---
library_name: transformers
tags: [{family.model_type}, {objective}]
---

# {family.architecture}, trained by the {objective} objective

The computation is that of `{family.model_class}` in transformers. {parameters:,} parameters in float32.

| size | |
| --- | --- |
{rows}

## How to load it

```python
from transformers import {family.auto_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = {family.auto_class}.from_pretrained("this/folder")
```

{family.use}

## By what it was judged

`{quantity}`: {likelihood.meaning}. The weights are those of step {loaded.config.step}, with a \
validation loss of {loaded.config.valid_nats:.4f} nats a prediction (0 where it is not known).

## Tokenizer

{tokenizer.DESCRIBED[loaded.tokenizer.kind]}; {loaded.tokenizer.vocab_size} pieces. Texts are normalised first: NFC, \
line ends as `\\n`, no NUL, U+2581 as `_`. `tokenizer.json` gives the ids that the checkpoint's own \
tokenizer gives, for every text, with these exceptions:

{deviations}

No text can spell a special token: `<mask>` in a text is read as six characters. Give `split_special_tokens=False` to \
read it as the token.

## Where it comes from

Exported from the checkpoint with the digest `{loaded.digest}` (sha256 of its `SHA256SUMS`); tokenizer \
`{loaded.tokenizer.sha256}`.
"""
