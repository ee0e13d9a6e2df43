"""Exit statuses by which a stage tells who started it what its end means, besides 0, 1 and those of signals."""

USER_ERROR = 2
"""The user must mend something: never retried."""

BUDGET_SPENT = 3
"""A training has cost what it may, and its state is saved: not retried, for it is to go on when a person says so."""

INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits(3): interrupted, with the state saved; worth another try."""
