"""Exit statuses by which a stage tells its parent why it ended, in addition to 0, 1 and those of signals."""

USER_ERROR = 2
"""The user must fix something: never retried."""

BUDGET_SPENT = 3
"""A training run has spent its budget, and its state is saved: not retried, because a person decides if it resumes."""

INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits(3): interrupted, with the state saved; worth another try."""
