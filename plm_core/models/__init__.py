"""Architectures, one file a paper. ``sections/models.py`` holds the table of them and their sections of the parameters.

Every model has ``config``, ``encode(ids, segments, keep)`` to hidden states for a task, and ``logits(hidden)``. One
that can read from left to right has ``read(ids, keep, state)`` to hidden states and the state that the next call goes
on from.
"""
