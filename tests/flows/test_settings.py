"""The flow's own sections are read strictly; the gate's parameters are left to the gate."""

import pytest

from flows import flow_configs
from plm_core.shared.errors import UserError

TRACKING = "tracking: {uri: 'http://localhost', experiment: plm}\n"


def test_promotion_settings_of_the_gate_are_not_read(tmp_path):
    (tmp_path / "params.yaml").write_text(TRACKING + "promotion: {registered_model: plm, primary: score, new: 1}\n")
    assert flow_configs.read_tracking(tmp_path)[1] == flow_configs.Promotion("plm")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("", r"promotion: no such section in params\.yaml; it has tracking"),
        ("promotion: [plm]\n", r"promotion: found \['plm'\]"),
        ("promotion: {primary: score}\n", r"promotion\.registered_model: missing"),
        ("promotion: {registered_model: ''}\n", r"promotion\.registered_model: found ''; expected a name"),
        ("promotion: {registered_model: team/plm}\n", r"promotion\.registered_model: found 'team/plm'; expected"),
    ],
)
def test_a_promotion_without_a_name_is_refused(tmp_path, section, message):
    (tmp_path / "params.yaml").write_text(TRACKING + section)
    with pytest.raises(UserError, match=f"^{message}"):
        flow_configs.read_tracking(tmp_path)
