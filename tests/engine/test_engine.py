"""One engine over the hash model: outputs, limits, timings, failures."""

from __future__ import annotations

import pytest
import torch

from ninferd.engine.engine import MAX_WAITING
from ninferd.engine.failures import EngineBroken
from ninferd.engine.messages import (
    GenerationRequest,
    PrefillProgress,
    PromptIdentity,
    RequestAdmitted,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokensGenerated,
)
from ninferd.models.batch import Batch
from tests.engine.hash_model import POISON, VOCAB, expected_tokens
from tests.engine.rig import GREEDY, Rig, prompt_of


def test_one_request_from_admission_to_finish() -> None:
    rig = Rig()
    prompt = prompt_of(150, salt=1)
    outcome = rig.submit("a", prompt, 3)
    rig.drain()
    kinds = [type(event) for event in outcome.events]
    assert kinds == [RequestAdmitted, *[PrefillProgress] * 3, *[TokensGenerated] * 3, RequestFinished]
    progress = [event.processed_tokens for event in outcome.events if isinstance(event, PrefillProgress)]
    assert progress == [64, 128, 150]
    assert outcome.tokens == expected_tokens(prompt, 3)
    assert outcome.reason == "length"
    assert rig.model.batches == [(64,), (64,), (22,), (1,), (1,)]
    rig.assert_empty()


@pytest.mark.parametrize("prefill_chunk", [64, 128, 512])
def test_batched_equals_solo(prefill_chunk: int) -> None:
    rig = Rig(lanes=4, pages=24, prefill_chunk=prefill_chunk)
    prompts = {f"r{salt}": prompt_of(11 + 37 * salt, salt) for salt in range(9)}
    outcomes = {name: rig.submit(name, prompt, 70 + len(prompt) % 5) for name, prompt in prompts.items()}
    rig.drain()
    for name, prompt in prompts.items():
        assert outcomes[name].tokens == expected_tokens(prompt, 70 + len(prompt) % 5), name
    assert max(len(lengths) for lengths in rig.model.batches) == 4
    rig.assert_empty()


def test_chunks_depend_on_the_own_prompt_alone() -> None:
    rig = Rig(lanes=4, pages=64, max_context=1024, prefill_chunk=128)
    lengths = [500, 128, 129, 1]
    for index, length in enumerate(lengths):
        rig.submit(f"r{index}", prompt_of(length, index), 40)
    rig.drain()
    chunks = sorted(query[0] for query in rig.model.batches if len(query) == 1 and query[0] > 1)
    assert chunks == sorted([128, 128, 128, 116, 128, 128])


def test_stop_token_is_emitted_counted_and_ends_with_stop() -> None:
    rig = Rig()
    prompt = prompt_of(20, salt=3)
    tokens = expected_tokens(prompt, 10)
    stop = tokens[4]
    until = tokens.index(stop) + 1
    outcome = rig.submit("a", prompt, 10, stop=(VOCAB + 5, stop))
    rig.drain()
    assert outcome.tokens == tokens[:until]
    assert outcome.reason == "stop"
    assert rig.engine.stats().generated_tokens == until
    assert isinstance(outcome.end, RequestFinished)
    assert outcome.end.timings.generated_tokens == until


def test_stop_token_at_the_limit_is_a_stop() -> None:
    rig = Rig()
    prompt = prompt_of(20, salt=3)
    outcome = rig.submit("a", prompt, 1, stop=(expected_tokens(prompt, 1)[0],))
    rig.drain()
    assert outcome.reason == "stop"


def test_no_output_wanted_processes_the_prompt_only() -> None:
    rig = Rig()
    outcome = rig.submit("a", prompt_of(70, salt=2), 0)
    rig.clock.now_s = 1.0
    rig.drain()
    assert outcome.tokens == []
    assert outcome.reason == "length"
    assert rig.model.batches == [(64,), (6,)]
    rig.assert_empty()


def test_output_is_bounded_by_the_context() -> None:
    rig = Rig(max_context=100, pages=2)
    prompt = prompt_of(90, salt=4)
    outcome = rig.submit("a", prompt, 1000)
    rig.drain()
    assert outcome.tokens == expected_tokens(prompt, 11)  # positions 90..99, and one token that needs no position
    assert outcome.reason == "length"


def test_prompt_that_fills_the_context_yields_one_token() -> None:
    rig = Rig(max_context=100, pages=2)
    prompt = prompt_of(100, salt=4)
    outcome = rig.submit("a", prompt, 5)
    rig.drain()
    assert outcome.tokens == expected_tokens(prompt, 1)


def test_timings_follow_the_clock() -> None:
    rig = Rig()
    rig.clock.now_s = 10.0
    outcome = rig.submit("a", prompt_of(65, salt=5), 3)
    for now_s in (10.5, 11.0, 13.0, 13.25):
        rig.clock.now_s = now_s
        rig.step()
    assert isinstance(outcome.end, RequestFinished)
    timings = outcome.end.timings
    assert (timings.queue_ms, timings.prefill_ms, timings.decode_ms) == (500.0, 500.0, 2250.0)
    assert (timings.prefill_tokens, timings.cached_tokens, timings.generated_tokens) == (65, 0, 3)
    first = next(event for event in outcome.events if isinstance(event, TokensGenerated))
    assert (first.timings.prefill_ms, first.timings.decode_ms, first.timings.generated_tokens) == (500.0, 0.0, 1)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "numbers"),
    [
        ([], 1, "invalid_request", "0 bytes"),
        ([1, VOCAB, 2], 1, "invalid_request", "token 1 has id 97"),
        ([1, -1], 1, "invalid_request", "token 1 has id -1"),
        ([1], -1, "invalid_request", "max_tokens is -1"),
        ([1] * 513, 1, "prompt_too_long", "513 tokens, the context holds 512"),
        ([1] * 400, 100, "capacity_impossible", "499 tokens need 8 cache pages of 64 tokens, there are 7"),
    ],
    ids=["empty", "beyond-vocabulary", "negative-id", "negative-limit", "long", "pages"],
)
def test_impossible_requests_are_refused_with_numbers(
    prompt: list[int], max_tokens: int, code: str, numbers: str
) -> None:
    rig = Rig(pages=7, max_context=512)
    outcome = rig.submit("a", prompt, max_tokens)
    assert rig.engine.has_work
    rig.step()
    assert isinstance(outcome.end, RequestFailed)
    assert outcome.end.code == code
    assert numbers in outcome.end.message
    assert rig.engine.stats().requests_failed == 1
    assert not rig.engine.has_work


def test_token_bytes_that_are_no_int32_are_refused() -> None:
    rig = Rig()
    rig.engine.submit(GenerationRequest("a", PromptIdentity(b"\x01\x00\x00\x00\x02"), GREEDY, 1, ()))
    (event,) = rig.engine.step()
    assert isinstance(event, RequestFailed)
    assert event.code == "invalid_request"


def test_queue_is_bounded() -> None:
    rig = Rig(lanes=1)
    for index in range(MAX_WAITING):
        rig.submit(f"r{index}", [1], 1)
    outcome = rig.submit("late", [1], 1)
    rig.step()
    assert outcome.reason == "unavailable"


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    rig = Rig()
    rig.submit("a", [1, 2], 2)
    with pytest.raises(ValueError, match="'a' is in use"):
        rig.submit("a", [3], 1)
    rig.drain()
    assert rig.submit("a", [3], 1).events == []
    rig.drain()


def test_waiting_request_expires_at_its_deadline_and_not_before() -> None:
    rig = Rig(lanes=1)
    rig.submit("running", prompt_of(10, 1), 400)
    outcome = rig.submit("late", prompt_of(10, 2), 5, timeout_ms=2000)
    rig.clock.now_s = 1.999
    rig.step()
    assert outcome.events == []
    rig.clock.now_s = 2.0
    rig.step()
    assert outcome.reason == "queue_timeout"


def test_cancel_while_waiting_prefilling_and_decoding() -> None:
    rig = Rig(lanes=2, pages=16)
    decoding = rig.submit("decoding", prompt_of(10, 1), 100)
    rig.step()
    prefilling = rig.submit("prefilling", prompt_of(300, 2), 5)
    waiting = rig.submit("waiting", prompt_of(10, 3), 5)
    rig.step()
    rig.step()
    stats = rig.engine.stats()
    assert (stats.waiting, stats.prefilling, stats.decoding) == (1, 1, 1)
    for request_id in ("decoding", "prefilling", "waiting", "unknown"):
        rig.engine.cancel(request_id)
        rig.engine.cancel(request_id)
    rig.step()
    assert [outcome.reason for outcome in (decoding, prefilling, waiting)] == ["cancelled"] * 3
    assert rig.engine.stats().requests_cancelled == 3
    rig.assert_empty()


def test_failed_prefill_ends_that_request_only() -> None:
    rig = Rig()
    survivor = rig.submit("survivor", prompt_of(30, 1), 20)
    rig.step()

    def fail_prefill(batch: Batch) -> None:
        if batch.rows_per_sequence is None:
            raise RuntimeError("kernel refused the shape")

    rig.model.before_step = fail_prefill
    victim = rig.submit("victim", prompt_of(30, 2), 20)
    rig.drain()
    assert victim.reason == "engine_error"
    assert survivor.tokens == expected_tokens(prompt_of(30, 1), 20)
    rig.assert_empty()


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate")],
    ids=["cuda", "host", "torch-cpu"],
)
def test_out_of_memory_in_a_decode_round_keeps_queue_and_prefills(error: Exception) -> None:
    rig = Rig(lanes=3, pages=32)
    decoding = [rig.submit(f"d{salt}", prompt_of(20, salt), 50) for salt in range(2)]
    for _ in range(4):
        rig.step()
    prefilling = rig.submit("prefilling", prompt_of(500, 7), 5)
    waiting = rig.submit("waiting", prompt_of(20, 8), 5)
    raised: list[Batch] = []

    def fail_once(batch: Batch) -> None:
        if len(batch.context_lengths) == 2 and not raised:
            raised.append(batch)
            raise error

    rig.model.after_writes = fail_once
    rig.drain()
    assert [outcome.reason for outcome in decoding] == ["engine_error"] * 2
    assert "out of memory" in getattr(decoding[0].end, "message", "")
    assert prefilling.tokens == expected_tokens(prompt_of(500, 7), 5)
    assert waiting.tokens == expected_tokens(prompt_of(20, 8), 5)
    rig.assert_empty()


def test_invalid_numbers_end_their_request_only_and_do_not_outlive_it() -> None:
    rig = Rig(lanes=2, pages=8)
    healthy = rig.submit("healthy", prompt_of(30, 1), 40)
    poisoned = rig.submit("poisoned", [*prompt_of(30, 2), POISON], 40)
    rig.drain()
    assert poisoned.reason == "engine_error"
    assert healthy.tokens == expected_tokens(prompt_of(30, 1), 40)
    assert not bool(rig.kv.paged.plain.isnan().any())


def test_device_error_breaks_the_engine() -> None:
    rig = Rig()
    rig.submit("a", [1, 2], 5)

    def poison_context(batch: Batch) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    rig.model.before_step = poison_context
    with pytest.raises(EngineBroken, match="illegal memory access"):
        rig.engine.step()


def test_three_failures_without_a_finish_break_the_engine() -> None:
    rig = Rig(lanes=1)

    def fail(batch: Batch) -> None:
        raise RuntimeError("always")

    rig.model.before_step = fail
    for index in range(3):
        rig.submit(f"r{index}", [1], 1)
    rig.step()
    rig.step()
    with pytest.raises(EngineBroken, match=r"three steps in a row failed.*always"):
        rig.step()
    assert [event.request_id for event in rig.engine.drain_events() if isinstance(event, RequestFailed)] == ["r2"]


@pytest.mark.parametrize("relief", ["finish", "time"])
def test_failures_far_apart_do_not_add_up(relief: str) -> None:
    rig = Rig(lanes=1)
    failing: list[bool] = []

    def fail_if_asked(batch: Batch) -> None:
        if failing:
            raise RuntimeError("sometimes")

    rig.model.before_step = fail_if_asked
    for index in range(6):
        failing[:] = [True]
        assert rig.submit(f"bad{index}", [1], 1).events == []
        rig.drain()
        if index % 2:
            failing.clear()
            if relief == "finish":
                rig.submit(f"good{index}", [1], 1)
                rig.drain()
            else:
                rig.clock.now_s += 31.0
    assert rig.engine.stats().requests_failed == 6


def test_probe_answers_and_leaves_no_trace() -> None:
    rig = Rig()
    rig.engine.probe()
    assert rig.model.batches == [(2,), (1,), (1,)]
    stats = rig.engine.stats()
    assert (stats.steps, stats.requests_finished, stats.generated_tokens) == (0, 0, 0)
    rig.assert_empty()


def test_probe_of_a_broken_model_raises() -> None:
    rig = Rig()

    def fail(batch: Batch) -> None:
        raise RuntimeError("no kernel image")

    rig.model.before_step = fail
    with pytest.raises(EngineBroken, match="probe"):
        rig.engine.probe()


def test_sampled_output_does_not_depend_on_neighbours() -> None:
    sampling = SamplingParams(seed=99, temperature=0.9, top_p=0.95, presence_penalty=0.5, top_logprobs=2)
    alone = Rig()
    lonely = alone.submit("a", prompt_of(40, 1), 50, sampling=sampling)
    alone.drain()
    crowd = Rig(lanes=4, pages=16)
    for salt in range(5):
        crowd.submit(f"n{salt}", prompt_of(15 + salt, salt + 2), 30, sampling=SamplingParams(seed=salt))
        crowd.step()
    crowded = crowd.submit("a", prompt_of(40, 1), 50, sampling=sampling)
    crowd.drain()
    assert crowded.tokens == lonely.tokens
    assert [e.logprobs for e in crowded.events if isinstance(e, TokensGenerated)] == [
        e.logprobs for e in lonely.events if isinstance(e, TokensGenerated)
    ]
