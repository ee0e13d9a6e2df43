"""The exception for what the user can fix, exit statuses, and the advice when memory runs out. Used everywhere."""

USER_ERROR = 2
"""The user must fix something: never retried."""

BUDGET_SPENT = 3
"""A training run has spent its budget, and its state is saved: not retried, because a person decides if it resumes."""

INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits(3): interrupted, with the state saved; worth another try."""


class UserError(Exception):
    """Something that the user gave cannot be used; the message names the place and what was expected."""

    beside: tuple["UserError", ...] = ()
    """Further errors in the same section."""

    def lines(self) -> list[str]:
        """This message and those in ``beside``, one line each."""
        return [str(self), *(line for other in self.beside for line in other.lines())]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, a library, the CPU's allocator of torch or a GPU had no memory left."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported
        return True
    message = str(error)
    # CUDA's libraries allocate independently of torch, and each reports it in its own words.
    return "DefaultCPUAllocator" in message or (
        isinstance(error, RuntimeError) and ("out of memory" in message.lower() or "ALLOC_FAILED" in message)
    )


def needs_less(stage: str, gpu: bool = False) -> str:
    """What to change so that a stage needs less memory, of a GPU or of the machine; ``stage`` is as in ``dvc.yaml``,
    such as ``pretrain@gpt``."""
    name, _, key = stage.partition("@")
    own = {
        "evaluate": "a smaller evaluate.excerpt, ",
        "finetune": "a smaller finetune.training.batch, ",
        "pretrain": f"a larger pretrain.{key}.training.accumulation, a smaller pretrain.{key}.model.context, ",
    }.get(name, "")
    if not gpu:
        return f"expected {own}no other stage at the same time (PLM_CORES=1), or a machine with more memory"
    return f"expected {own}or a GPU with more memory" if own else "expected a GPU with more memory"
