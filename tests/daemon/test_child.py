from __future__ import annotations

import pytest

from ninferd.daemon.child import EngineChild, EngineLoadError, child_environment, describe_exit
from tests.daemon.support import run


def test_child_environment_has_no_service_manager_and_no_configuration() -> None:
    env = {
        "PATH": "/bin",
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "NINFERD_SERVER_API_KEY": "secret",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert child_environment(env) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_describe_exit(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_engine_that_cannot_be_started_is_a_failed_load() -> None:
    with pytest.raises(EngineLoadError, match=r"the engine cannot be started: .*/no/such/program"):
        run(EngineChild.launch(("/no/such/program",), b"{}", lambda _event: None))
