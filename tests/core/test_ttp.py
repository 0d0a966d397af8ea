"""What an order of the control plane means for MindIO's controller."""

import pytest

from taskd.core.ttp import (
    Begin,
    Call,
    Order,
    Pause,
    Settings,
    Skip,
    TtpError,
    plan_steps,
    read_settings,
    start_calls,
)

ENV = {"WORLD_SIZE": "16", "POD_IP": "10.0.0.9", "TTP_PORT": "8000"}
RANKS = {3: 0, 7: 1}


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        (Order(("save_and_exit",)), (Call("tft_notify_controller_dump"),)),
        (Order(("stop_train",), RANKS), (Call("tft_notify_controller_stop_train", (RANKS, "stop")),)),
        (Order(("pause_train",), RANKS), (Call("tft_notify_controller_stop_train", (RANKS, "pause", 600)),)),
        (
            Order(("pause_train",), RANKS, timeout_s=30),
            (Call("tft_notify_controller_stop_train", (RANKS, "pause", 30)),),
        ),
        (Order(("on_global_rank",), RANKS), (Call("tft_notify_controller_on_global_rank", (RANKS,)),)),
        (
            Order(("on_global_rank",), RANKS, timeout_s=9),
            (Call("tft_notify_controller_on_global_rank", (RANKS, 9)),),
        ),
        (
            Order(("change_strategy",), strategy="downgrade", params='{"scale-in-strategy": "DP"}'),
            (Call("tft_notify_controller_change_strategy", ("downgrade", '{"scale-in-strategy": "DP"}')),),
        ),
        (
            Order(("hot switch",), RANKS),
            (Call("tft_notify_controller_prepare_action", ("hot switch", RANKS)),),
        ),
        (
            Order(("stop switch",), RANKS),
            (Call("tft_notify_controller_prepare_action", ("stop switch", RANKS)),),
        ),
        (Order(("new pod running",)), (Skip("the new pod runs"),)),
        (Order(("restart_controller",)), (Call("tft_destroy_controller"), Pause(1.0), Begin())),
        (Order(("destroy_controller",)), (Call("tft_destroy_controller"),)),
        (Order(("dance",)), (Skip("the controller knows no action 'dance'"),)),
        (
            Order(("stop_train", "on_global_rank"), RANKS),
            (
                Call("tft_notify_controller_stop_train", (RANKS, "stop")),
                Call("tft_notify_controller_on_global_rank", (RANKS,)),
            ),
        ),
    ],
)
def test_each_action_is_the_documented_call(order: Order, steps: tuple[object, ...]) -> None:
    """In the order of the list; what is unknown is left out with a reason."""
    assert steps == plan_steps(order, 600, can_prepare=True)


def test_an_older_package_does_not_switch() -> None:
    """Its processors know nothing of hot switching, so the action is left out with a reason."""
    (step,) = plan_steps(Order(("hot switch",), RANKS), 600, can_prepare=False)

    assert isinstance(step, Skip)
    assert "tft_notify_controller_prepare_action" in step.why


def test_the_controller_is_started_as_in_the_reference() -> None:
    """Rank -1, no copy of its own, its TLS off; recovery and elastic training by the job's switches."""
    env = {**ENV, "PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "retry,elastic-training"}

    assert (
        Call("tft_init_controller", (-1, 16, False, True, True)),
        Call("tft_start_controller", ("10.0.0.9", 8000, False, "")),
    ) == start_calls(read_settings(env))
    assert (
        Call("tft_init_controller", (-1, 8, False, False, False)),
        Call("tft_start_controller", ("10.0.0.9", 8000, False, "")),
    ) == start_calls(read_settings({**ENV, "WORLD_SIZE": "", "MS_WORKER_NUM": "8"}))


@pytest.mark.parametrize(("value", "pause_s"), [("", 600), ("x", 600), ("120", 300), ("100000", 7200)])
def test_how_long_a_pause_may_take_follows_from_hccl(value: str, pause_s: int) -> None:
    """Two and a half times its time to connect, and two hours at most."""
    assert pause_s == read_settings({**ENV, "HCCL_CONNECT_TIMEOUT": value}).pause_s


@pytest.mark.parametrize("missing", sorted(ENV))
def test_what_is_missing_is_named(missing: str) -> None:
    """The manager then goes on without the controller."""
    with pytest.raises(TtpError, match=missing):
        read_settings({**ENV, missing: ""})


def test_settings_are_plain_values() -> None:
    """Read once, at the edge."""
    assert Settings(
        16, "10.0.0.9", 8000, process_recovery=False, elastic=False, pause_s=600
    ) == read_settings(ENV)
