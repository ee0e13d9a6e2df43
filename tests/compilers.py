"""Models that take themselves to be compiled, or not. Used by tests that compare what they then do."""

import torch


def pretend(monkeypatch, compiling=True):
    """Have ``torch.compiler.is_compiling`` say so.

    First the compiler's table of functions is made, as it is by whatever first needs it, and kept: the real one has to
    be in it, or nothing that asks can be compiled in this process any more.
    """
    from torch._dynamo import trace_rules

    trace_rules.get_torch_obj_rule_map()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
