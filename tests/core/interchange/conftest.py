"""A checkpoint of every family and its export, made once."""

import pytest
from saved import save

from plm_core.interchange import FAMILIES, export_hf


@pytest.fixture(scope="session", params=list(FAMILIES))
def exported(request, device, tokenizers, tmp_path_factory):
    """The name of a family, the folder of a checkpoint of it, and the folder of its export."""
    folder = tmp_path_factory.mktemp(request.param)
    save(folder / "checkpoint", request.param, tokenizers["unigram" if request.param == "xlnet" else "bpe"])
    export_hf(folder / "checkpoint", folder / "hf")
    return request.param, folder / "checkpoint", folder / "hf"
