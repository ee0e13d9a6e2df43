"""Change parameters in place: ``python -m tasks.commands.change '{"pretrain.gpt.model.layers": 4}'``. Used by sweeps.

Everything else in ``params.yaml`` stays as it is, including comments.
"""

import json

from plm_core.shared.files import atomic_text
from tasks.parameters import stage_parameters
from tasks.parameters.editing import edit_text
from tasks.parameters.stage_parameters import PARAMS
from tasks.runtime.stage import main


def change(values: str) -> None:
    """Set parameters to the VALUES in a JSON object, by dotted name; one that already has its value stays as written.

    Raises:
        UserError: the section of a name does not exist.
    """
    others = {name: value for name, value in json.loads(values).items() if not stage_parameters.has_value(name, value)}
    atomic_text(PARAMS, edit_text(PARAMS.read_text(encoding="utf-8"), others))


if __name__ == "__main__":
    main(change)
