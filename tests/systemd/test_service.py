"""``ninferd.service`` under a real systemd; every test boots its own."""

from __future__ import annotations

import os
import pwd
import re
import signal
from pathlib import Path

import pytest

from tests.daemon.http_client import finish_reason, has_error
from tests.systemd.service import CONFIG, DROP_IN, UNIT_DIRECTORY, Service, output

pytestmark = [pytest.mark.systemd, pytest.mark.xdist_group("systemd")]

MAX_EXPOSURE = 3.0  # `systemd-analyze security`, 0 (none) to 10


def test_start_is_ready_and_stop_is_clean() -> None:
    service = Service()
    service.start()
    assert service.show("ActiveState") == "active"
    assert service.show("StatusText") == "serving endless at 127.0.0.1:8080"
    assert service.get("/health")[0] == 200
    assert Path(f"/proc/{service.main_pid}").stat().st_uid == pwd.getpwnam("ninferd").pw_uid
    assert Path("/run/ninferd/effective.json").exists()
    service.systemctl("stop")
    assert service.show("Result") == "success"
    assert service.journal()[-1] == "stopped | exit status 0"


def test_journal_has_priorities_and_no_prefixes() -> None:
    service = Service()
    service.start()
    CONFIG.write_text("broken")
    service.systemctl("reload")
    service.wait_journal("reload refused")
    assert any(line.startswith("ready | endless on cpu") for line in service.journal("--priority=info"))
    assert not any("ready |" in line for line in service.journal("--priority=warning"))
    errors = service.journal("--priority=err")
    assert errors
    assert all(line.startswith("reload refused, the old configuration stays | ") for line in errors)
    preflight = [line for line in service.journal() if "KV cache" in line]
    assert preflight, "every line of a record is there"
    assert not preflight[0].startswith("<")


def test_reload_applies_a_live_key() -> None:
    service = Service()
    service.start()
    pid, child = service.main_pid, service.child_pid
    DROP_IN.write_text("[limits]\ndefault_max_tokens = 3\n")
    service.systemctl("reload")
    service.wait_journal("reload done | configuration generation 2")
    with service.stream(max_tokens=None) as payloads:
        assert finish_reason(list(payloads)) == "length"
    assert (service.main_pid, service.child_pid) == (pid, child)
    assert service.get("/stats")[1]["config"]["generation"] == 2


def test_reload_of_a_broken_file_keeps_the_old_configuration() -> None:
    service = Service()
    service.start()
    pid = service.main_pid
    DROP_IN.write_text("[limits]\ndefault_max_tokens = 3\nmax_request_mib = 0\n")
    service.systemctl("reload")
    service.wait_journal(f"{DROP_IN}:3: limits.max_request_mib")
    with service.stream(max_tokens=None) as payloads:
        for _ in range(10):
            next(payloads)
    assert service.main_pid == pid
    assert f"last reload refused: {DROP_IN}:3" in service.show("StatusText")
    assert service.show("ActiveState") == "active"


def test_hanging_engine_makes_the_watchdog_restart_the_unit() -> None:
    service = Service(watchdog_s=8)
    service.start()
    pid = service.main_pid
    os.kill(service.child_pid, signal.SIGSTOP)
    service.wait_journal("engine silent for more than 4.0 s | the watchdog is not fed any more")
    service.wait_journal("ready | endless", times=2)
    service.systemctl("start")  # waits for the job that is under way
    assert service.show("NRestarts") == "1"
    assert service.main_pid != pid
    with service.stream(max_tokens=3) as payloads:
        assert finish_reason(list(payloads)) == "length"


def test_killed_engine_costs_its_stream_and_the_service_stays() -> None:
    service = Service()
    service.start()
    pid, child_pid = service.main_pid, service.child_pid
    with service.stream(max_tokens=8000) as payloads:
        next(payloads)
        os.kill(child_pid, signal.SIGKILL)
        assert has_error(list(payloads))
    with service.stream(max_tokens=3) as payloads:
        assert finish_reason(list(payloads)) == "length"
    assert service.main_pid == pid
    assert service.show("NRestarts") == "0"
    assert any("engine lost: the engine was killed by SIGKILL" in line for line in service.journal("--priority=err"))


def test_stop_drains_a_running_stream() -> None:
    service = Service()
    service.start()
    with service.stream(max_tokens=200) as payloads:
        next(payloads)
        service.systemctl("stop", "--no-block")
        service.wait_journal("draining | 1 requests in flight")
        assert service.get("/health")[0] == 503
        assert finish_reason(list(payloads)) == "length"
    service.systemctl("stop")
    assert service.show("Result") == "success"


def test_refused_configuration_is_not_retried() -> None:
    service = Service()
    CONFIG.write_text("[model]\nartifact = 7\n")
    assert service.systemctl("start", check=False) != 0
    assert service.show("ExecMainStatus") == "2"
    assert service.show("NRestarts") == "0"
    assert any(f"{CONFIG}:2: model.artifact" in line for line in service.journal("--priority=crit"))


def test_unit_is_valid_and_sandboxed() -> None:
    Service()
    assert output("systemd-analyze", "verify", str(UNIT_DIRECTORY / "ninferd.service")) == ""
    report = output("systemd-analyze", "security", "--no-pager", "ninferd.service")
    exposure = re.search(r"Overall exposure level for ninferd.service: (\d+\.\d)", report)
    assert exposure is not None, report
    assert float(exposure[1]) <= MAX_EXPOSURE
