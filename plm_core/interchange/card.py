"""The model card of an exported checkpoint: what it is, by what it was judged, how to load it."""

from dataclasses import asdict

from plm_core.checkpoint import Loaded
from plm_core.evaluation.likelihood import named
from plm_core.interchange import tokenizer
from plm_core.interchange.family import Family
from plm_core.objectives import OBJECTIVES

PAGE = """---
library_name: transformers
tags: [{model_type}, {objective}]
---

# {architecture}, trained by the {objective} objective

The computation is that of `{model_class}` in transformers. {parameters:,} parameters in float32.

| size | |
| --- | --- |
{rows}

## How to load it

```python
from transformers import {auto_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = {auto_class}.from_pretrained("this/folder")
```

{use}

## By what it was judged

`{quantity}`: {meaning}. The weights are those of step {step}, with a \
validation loss of {valid_nats:.4f} nats a prediction (0 where it is not known).

## Tokenizer

{tokenizer}; {vocab_size} pieces. Texts are normalised first: NFC, \
line ends as `\\n`, no NUL, U+2581 as `_`. `tokenizer.json` gives the ids that the checkpoint's own \
tokenizer gives, for every text, with these exceptions:

{deviations}

No text can spell a special token: `<mask>` in a text is read as six characters. Give `split_special_tokens=False` to \
read it as the token.

## Where it comes from

Exported from the checkpoint with the digest `{digest}` (sha256 of its `SHA256SUMS`); tokenizer \
`{tokenizer_sha256}`.
"""


def card(loaded: Loaded, family: Family) -> str:
    """The text of ``README.md``."""
    likelihood = OBJECTIVES[loaded.config.objective].likelihood
    return PAGE.format(
        model_type=family.model_type,
        objective=loaded.config.objective,
        architecture=family.architecture,
        model_class=family.model_class,
        auto_class=family.auto_class,
        use=family.use,
        parameters=sum(p.numel() for p in loaded.model.parameters()),
        rows="\n".join(f"| {name} | {value} |" for name, value in asdict(loaded.model.config).items()),
        quantity=named(likelihood.name, loaded.tokenizer),
        meaning=likelihood.meaning,
        step=loaded.config.step,
        valid_nats=loaded.config.valid_nats,
        tokenizer=tokenizer.DESCRIBED[loaded.tokenizer.kind],
        vocab_size=loaded.tokenizer.vocab_size,
        deviations="\n".join(f"- {line}" for line in tokenizer.deviations(loaded.tokenizer)),
        digest=loaded.digest,
        tokenizer_sha256=loaded.tokenizer.sha256,
    )
