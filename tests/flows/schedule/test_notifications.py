"""Messages, sent through apprise to a real web server and a real mail server."""

import os
import socket
import socketserver
from collections.abc import Iterator

import pytest
from ears import Mail, messages, serving, webhook

from flows.run.run_result import Result, StageOutcome
from flows.schedule import notifications
from plm_core.shared.options import EVENTS, NotifyConfig

SECRET = "T0psecret"


@pytest.fixture
def mail() -> Iterator[socketserver.ThreadingTCPServer]:
    yield from serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail))


@pytest.fixture
def addresses(monkeypatch):
    """Sets where messages go."""
    return lambda *given: monkeypatch.setenv("PLM_NOTIFY_URLS", " ".join(given))


def mailbox(server) -> str:
    port = server.server_address[1]
    return f"mailto://127.0.0.1:{port}/?from=plm@example.org&to=team@example.org&mode=insecure&name={SECRET}"


def test_notification_says_what_happened_and_where(tmp_path, hook, mail, addresses, capfd):
    addresses(webhook(hook, SECRET), mailbox(mail))
    notifications.notify(tmp_path, "failure", "The run failed. pretrain@gpt: no room")
    ((path, post),) = hook.heard
    assert path == f"/{SECRET}"
    assert post["title"] == f"plm: failure in {tmp_path} on {os.uname().nodename}"
    assert post["message"].startswith("The run failed. pretrain@gpt: no room\n\nSee artifacts/report/")
    assert post["message"].endswith(f"{tmp_path} on {os.uname().nodename}")
    (letter,) = mail.heard
    assert "Subject: plm: failure in" in letter
    assert capfd.readouterr() == ("", "")


def test_notifications_are_limited_to_chosen_events(tmp_path, hook, monkeypatch):
    monkeypatch.setenv("WHERE", webhook(hook, SECRET))
    (tmp_path / "params.yaml").write_text("notify: {urls_from: WHERE, events: [budget]}\n")
    for event in EVENTS:
        notifications.notify(tmp_path, event, "Something happened.")
    assert [post["title"].split()[1] for _, post in hook.heard] == ["budget"]


def test_notifications_are_sent_despite_invalid_parameters(tmp_path, hook, addresses):
    addresses(webhook(hook, SECRET))
    (tmp_path / "params.yaml").write_text("notify: {events: everything}\nlearning: [\n")
    notifications.notify(tmp_path, "failure", "The scheduled run could not begin.")
    assert len(hook.heard) == 1


def test_failed_notification_address_does_not_block_others(tmp_path, hook, addresses, capfd):
    addresses(
        webhook(hook, f"broken/{SECRET}"), f"nonsense://{SECRET}", f"json://127.0.0.1:9/{SECRET}", webhook(hook, SECRET)
    )
    notifications.notify(tmp_path, "disk", "The disk is full.")
    assert [path for path, _ in hook.heard][-1] == f"/{SECRET}"
    assert capfd.readouterr() == (
        "",
        "warning: notify: the disk message may not have been delivered: PLM_NOTIFY_URLS: address 1 did not accept it "
        "(is the address correct, and reachable from here?); address 2 is not one that apprise recognises; "
        "address 3 did not accept it (is the address correct, and "
        "reachable from here?)\n",
    )


def test_notification_error_text_is_not_printed(tmp_path, addresses, capfd, monkeypatch):
    import apprise

    def broken(*_, **__):
        raise ValueError(SECRET)

    addresses("json://127.0.0.1:9")
    monkeypatch.setattr(apprise.Apprise, "notify", broken)
    assert not notifications.notify(tmp_path, "disk", "The disk is full.")
    assert capfd.readouterr().err.endswith("PLM_NOTIFY_URLS: apprise failed with ValueError\n")


def test_notification_times_out(tmp_path, addresses, capfd, monkeypatch):
    monkeypatch.setattr(notifications, "LIMIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses(f"json://127.0.0.1:{silent.getsockname()[1]}/")
        notifications.notify(tmp_path, "disk", "The disk is full.")
    assert capfd.readouterr().err.endswith("PLM_NOTIFY_URLS: sending took longer than 0.05 s\n")


def test_no_notification_without_an_address(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("PLM_NOTIFY_URLS", raising=False)
    notifications.notify(tmp_path, "failure", "The run failed.")
    assert capfd.readouterr() == ("", "")


def test_notification_address_in_params_is_refused_unprinted():
    with pytest.raises(ValueError, match=r"^urls_from: expected the name of an environment variable") as caught:
        NotifyConfig(urls_from=f"slack://{SECRET}")
    assert SECRET not in str(caught.value)


def test_model_outcomes_are_notified(tmp_path, hook, addresses):
    from flows.registry.promotion import VersionOutcome as Judged

    addresses(webhook(hook, SECRET))
    notifications.notify_result(
        tmp_path,
        Result(
            (),
            models=(
                Judged("3", "pretrain@gpt", "promoted", ["better than 2"]),
                Judged("4", "pretrain@bert", "refused", ["not better", "and larger"]),
                Judged("1", "pretrain@xlnet", "unchanged", [""]),
            ),
        ),
    )
    notifications.notify_models(tmp_path, [Judged("2", "pretrain@gpt", "rolled back to", ["as users complained"])])
    notifications.notify_models(tmp_path, [Judged("1", "pretrain@gpt", "moved in the UI", ["the gate agrees"])])
    assert messages(hook) == [
        ("promotion", "Version 3 (pretrain@gpt) was promoted: better than 2"),
        ("refusal", "Version 4 (pretrain@bert) was refused: not better; and larger"),
        ("rollback", "Rolled back to version 2 (pretrain@gpt): as users complained"),
        ("promotion", "Version 1 (pretrain@gpt) was made the champion in MLflow: the gate agrees"),
    ]


@pytest.mark.slow
def test_spent_budget_notification_hides_no_failure(tmp_path, hook, addresses):
    addresses(webhook(hook, SECRET))
    spent = StageOutcome("pretrain@gpt", "failed", reason="pretrain-gpt has cost 12 of 10 (PLM_BUDGET)", status=3)
    after = StageOutcome("evaluate@gpt", "not run", reason="needs pretrain@gpt")
    notifications.notify_result(tmp_path, Result((spent, after), "pretrain@gpt: exit status 3: it has cost"))
    assert messages(hook) == [("budget", "pretrain-gpt has cost 12 of 10 (PLM_BUDGET).")]
    broken = StageOutcome("pretrain@bert", "failed", reason="no room", status=1)
    notifications.notify_result(tmp_path, Result((spent, broken), "pretrain@gpt: exit status 3: it has cost"))
    assert messages(hook)[2:] == [("failure", "The run failed. pretrain@bert: no room")]
