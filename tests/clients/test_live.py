"""The whole path at once: a real model and engine, the real listener, the official client.

The model has the embedded model's tokenizer and template but made-up weights, so it does not end its answers by itself.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from ninferd.engine.local import LocalEngine
from ninferd.engine.messages import EngineStats
from tests.clients.live_server import serving
from tests.support.checkpoints import TEXT, write_random_checkpoint
from tests.support.frontends import make_settings, tiny_directory, tiny_frontend

pytestmark = pytest.mark.anyio

MODEL = "made-up"
ENGINE = {
    "device": "cpu",
    "dtype": "float32",
    "kv_dtype": "fp32",
    "max_context": 2048,
    "max_concurrency": 8,
    "kv_capacity": 16384,
    "prefill_chunk": 128,
}
LENGTHS = [(1, 24), (400, 8), (30, 40), (150, 16), (5, 33), (260, 12), (60, 1), (90, 28)]
"""(words in the question, tokens in the answer) of each client."""


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_random_checkpoint(directory, {**TEXT, "vocab_size": len(tiny_frontend().tokenizer.token_bytes)}, seed=0)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(tiny_directory() / name, directory / name)
    return directory


def served(directory: Path) -> AbstractAsyncContextManager[tuple[AsyncOpenAI, LocalEngine]]:
    return serving(make_settings(model={"artifact": str(directory), "id": MODEL}, engine=ENGINE))


def request(words: int, max_tokens: int) -> Any:
    question = " ".join(f"item{number}" for number in range(words))
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"List: {question}"}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def answer(client: AsyncOpenAI, words: int, max_tokens: int) -> tuple[str, str, int]:
    """Reasoning, content and number of generated tokens of one streamed answer."""
    reasoning, content, tokens = "", "", 0
    async for chunk in await client.chat.completions.create(**request(words, max_tokens)):
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
            content += choice.delta.content or ""
    return reasoning, content, tokens


async def leave_early(client: AsyncOpenAI, words: int) -> None:
    """Read a little of a long answer and hang up."""
    stream = await client.chat.completions.create(**request(words, 900))
    chunks = aiter(stream)
    for _ in range(4):
        await anext(chunks)
    await stream.close()


async def stats_after(engine: LocalEngine, ended: int) -> EngineStats:
    """The engine's gauges once that many requests have ended; it reports them a few times a second."""
    async with asyncio.timeout(60):
        while True:
            stats = engine.stats
            assert stats is not None
            if stats.requests_finished + stats.requests_cancelled + stats.requests_failed >= ended:
                return stats
            await asyncio.sleep(0.05)


async def test_concurrent_streams_equal_solo_runs_and_nothing_leaks(model_directory: Path) -> None:
    async with served(model_directory) as (client, engine):
        solo = [await answer(client, *lengths) for lengths in LENGTHS]
        leaving = [leave_early(client, words) for words in (20, 200)]
        together, _ = await asyncio.gather(
            asyncio.gather(*(answer(client, *lengths) for lengths in LENGTHS)), asyncio.gather(*leaving)
        )
        assert together == solo
        assert len(set(solo)) == len(LENGTHS), "the answers differ, so equality means something"
        assert all(1 <= tokens <= max_tokens for (_, _, tokens), (_, max_tokens) in zip(solo, LENGTHS, strict=True))
        stats = await stats_after(engine, 2 * len(LENGTHS) + len(leaving))
        assert (stats.requests_cancelled, stats.requests_failed) == (len(leaving), 0)
        assert (stats.pages_used, stats.state_slots_used) == (0, 0)


async def test_seed_repeats_a_sampled_answer(model_directory: Path) -> None:
    async with served(model_directory) as (client, _):
        fields: Any = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 24,
            "temperature": 1.5,
        }
        answers = [(await client.chat.completions.create(**fields, seed=seed)).choices[0].message for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


async def test_usage_and_limits(model_directory: Path) -> None:
    async with served(model_directory) as (client, _):
        question: Any = [{"role": "user", "content": "hello"}]
        nothing = await client.chat.completions.create(model=MODEL, messages=question, max_tokens=0)
        assert (nothing.choices[0].finish_reason, nothing.choices[0].message.content) == ("length", "")
        assert nothing.usage is not None
        assert nothing.usage.completion_tokens == 0
        everything = await client.chat.completions.create(
            model=MODEL,
            messages=question,
            logprobs=True,
            top_logprobs=5,
            max_tokens=8,
            extra_body={"enable_thinking": False},
        )
        logprobs = everything.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content
        for entry in logprobs.content:
            assert entry.logprob <= 0
            values = [other.logprob for other in entry.top_logprobs]
            assert len(values) == 5
            assert values == sorted(values, reverse=True)
