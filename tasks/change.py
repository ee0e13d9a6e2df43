"""Changes parameters in place: ``python -m tasks.change '{"pretrain.gpt.model.layers": 4}'``. Used by sweeps.

All else in ``params.yaml`` stays as it is, comments too.
"""

import json

from plm_core.files import atomic_text
from tasks.runtime.stage import main
from tasks.settings.editing import edited
from tasks.settings.params import PARAMS


def change(values: str) -> None:
    """Give parameters the VALUES in a JSON object, by their dotted names.

    Raises:
        UserError: the section that a name belongs to is not there.
    """
    atomic_text(PARAMS, edited(PARAMS.read_text(encoding="utf-8"), json.loads(values)))


if __name__ == "__main__":
    main(change)
