"""How long those who end a process wait for it, which whoever started them must outlast."""

SAVING_S = 600
"""How long a stage that was told to end may take to save its state before it is killed."""
