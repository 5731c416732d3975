from __future__ import annotations

from ninferd.daemon.restart_policy import BACKOFF_LIMIT_S, RestartPolicy


def test_waits_double_and_then_it_gives_up() -> None:
    policy = RestartPolicy(max_restarts=4, window_s=300, backoff_base_s=0.5)
    assert [policy.next_delay(now) for now in (0.0, 1.0, 2.0, 3.0)] == [0.5, 1.0, 2.0, 4.0]
    assert policy.next_delay(4.0) is None


def test_old_restarts_are_forgotten() -> None:
    policy = RestartPolicy(max_restarts=2, window_s=100, backoff_base_s=0.5)
    assert policy.next_delay(0.0) == 0.5
    assert policy.next_delay(50.0) == 1.0
    assert policy.next_delay(100.0) is None
    assert policy.next_delay(101.0) == 1.0, "the first one has left the window, the second has not"
    assert policy.recent == 2


def test_wait_is_bounded() -> None:
    policy = RestartPolicy(max_restarts=50, window_s=1e6, backoff_base_s=0.5)
    delays = [policy.next_delay(float(now)) for now in range(50)]
    assert max(delay for delay in delays if delay is not None) == BACKOFF_LIMIT_S


def test_none_allowed() -> None:
    assert RestartPolicy(max_restarts=0, window_s=1, backoff_base_s=0.5).next_delay(0.0) is None
