"""Architectures, one file per paper. ``configs/architectures.py`` has their table and their sections of the parameters.

Every model has ``config``, ``blocks`` and ``encode(ids, segments, attention_mask)`` to hidden states for a task, and
``tokens`` (the ``nn.Embedding`` of its ids) or, if it reads characters, ``spell(pieces, ends)``. One that reads from
left to right has ``output(hidden)``, ``logits(hidden)`` and ``read(ids, attention_mask)`` to hidden states, and if it
has memory ``read_with_memory``, which also returns what the next call continues from. One that predicts masked tokens
has ``predict(ids, at)``, ``pool(hidden)`` to one vector per row and, unless its objective is ``replaced``,
``output(hidden)``.
"""
