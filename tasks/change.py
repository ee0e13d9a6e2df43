"""Change parameters in place: ``python -m tasks.change '{"pretrain.gpt.model.layers": 4}'``. Used by sweeps.

Everything else in ``params.yaml`` stays as it is, including comments.
"""

import json

from plm_core.files import atomic_text
from tasks.runtime.stage import main
from tasks.settings import params
from tasks.settings.editing import edited
from tasks.settings.params import PARAMS


def change(values: str) -> None:
    """Set parameters to the VALUES in a JSON object, by dotted name; one that already has its value stays as written.

    Raises:
        UserError: the section of a name does not exist.
    """
    others = {name: value for name, value in json.loads(values).items() if not params.says(name, value)}
    atomic_text(PARAMS, edited(PARAMS.read_text(encoding="utf-8"), others))


if __name__ == "__main__":
    main(change)
