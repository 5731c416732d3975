"""``ninferd bench`` on a CPU: what it prints, what its JSON holds, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ninferd.benchmarks import ceilings
from ninferd.benchmarks.ceilings import Ceilings
from ninferd.benchmarks.decode import DecodeFigure
from ninferd.benchmarks.families import FAMILIES
from ninferd.benchmarks.kernels import KernelFigure, families
from ninferd.benchmarks.prefill import PrefillFigure
from ninferd.benchmarks.results import Report
from ninferd.cli import main
from tests.weights.synthesis.geometries import DENSE, MOE, written

GIB = 1 << 30
KERNELS = ["--rows", "1", "2", "--prefill-rows", "16", "--lanes", "1", "2", "--contexts", "65"]
DECODE = ["--lanes", "1", "2", "--rows", "1", "2", "--contexts", "100", "--rounds", "3"]
PREFILL = ["--prompts", "40", "200", "--chunks", "128"]


@pytest.fixture(autouse=True)
def _small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(ceilings, "GEMM_SIZE", {"cpu": 64})


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON of a run, which alone is on standard output."""
    assert main(["bench", *arguments, "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("cpu, ")
    found: dict[str, Any] = json.loads(printed.out)
    return found


def close(found: float, expected: float) -> bool:
    return found == pytest.approx(expected)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The envelope of every benchmark, as docs/performance.md lists it."""
    found = reported(capsys, "prefill", *PREFILL)
    assert list(found) == list(Report.__struct_fields__)
    assert (found["schema"], found["benchmark"], found["artifact"]) == (1, "prefill", "embedded:ninfer-tiny")
    assert found["where"]["device"].startswith("cpu, ")
    assert set(found["where"]) == {"device", "torch", "ninferd", "time"}
    model = found["model"]
    assert (model["name"], model["weights_dtype"], model["ops"]["table"]) == ("ninfer-tiny", "float32", "cpu")
    measured = msgspec.convert(found["ceilings"], Ceilings)
    assert min(measured.read_bytes_per_s, measured.copy_bytes_per_s, measured.gemm_flop_per_s) > 0
    assert measured.launch_us is None
    assert found["skipped"] == found["warnings"] == []


def test_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    found = reported(capsys, "prefill", *PREFILL)
    figures = msgspec.convert(found["figures"], list[PrefillFigure])
    assert [(each.prompt_tokens, each.chunk_tokens) for each in figures] == [(40, 128), (200, 128)]
    for each in figures:
        assert close(each.tokens_per_s, each.prompt_tokens / each.seconds)
        assert close(each.flop_per_s, each.flops / each.seconds)
        assert close(each.share_of_gemm, each.flop_per_s / found["ceilings"]["gemm_flop_per_s"])
        # two attention layers of 4 heads of 256
        assert each.attention_flops == 2 * 2 * 4 * 256 * each.prompt_tokens * (each.prompt_tokens + 1)
        assert each.flops > each.attention_flops


def test_decode(capsys: pytest.CaptureFixture[str]) -> None:
    found = reported(capsys, "decode", *DECODE)
    figures = msgspec.convert(found["figures"], list[DecodeFigure])
    assert [(each.lanes, each.rows) for each in figures] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    read = found["ceilings"]["read_bytes_per_s"]
    for each in figures:
        roof = each.weight_bytes + each.kv_bytes + each.state_bytes
        assert close(each.roof_ms, 1e3 * roof / read)
        milliseconds = each.step_ms if each.rows == 1 else each.device_ms
        assert milliseconds is not None
        assert (each.step_ms is None) == (each.rows > 1)
        assert close(each.tokens_per_s, 1e3 * each.lanes * each.rows / milliseconds)
        assert close(each.share_of_roof, each.roof_ms / milliseconds)
        assert close(each.device_share_of_roof, each.roof_ms / each.device_ms)
        one_lane = figures[each.rows - 1]
        assert each.times_one_lane is not None
        assert close(each.times_one_lane, each.tokens_per_s / one_lane.tokens_per_s)
        # 4 KiB a token in fp32, contexts a little below the one asked for
        assert 60 * 4096 * each.lanes < each.kv_bytes <= 102 * 4096 * each.lanes
        assert each.weight_bytes == figures[0].weight_bytes
        # six layers of 4 heads of 128 x 128 and 1024 channels of 3, in float32, read and written
        assert each.state_bytes == 2 * each.lanes * 6 * 4 * (4 * 128 * 128 + 1024 * 3)
    assert not any(each.graphs or each.sampled for each in figures)


def test_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    found = reported(capsys, "kernels", *KERNELS)
    figures = msgspec.convert(found["figures"], list[KernelFigure])
    assert {each.op for each in figures} == {
        "linear",
        "dense_block",
        "attention_decode",
        "attention_prefill",
        "append_kv",
        "gated_delta_decode",
        "gated_delta_round",
        "gated_delta_prefill",
        "rms_norm",
        "add_rms_norm",
        "silu_mul",
        "sampling",
    }
    for each in figures:
        if each.flops is not None:
            assert each.share_of_read is None
            assert each.share_of_gemm is not None
            assert close(each.share_of_gemm, 1e6 * each.flops / each.us / found["ceilings"]["gemm_flop_per_s"])
        elif each.bytes is not None:
            assert each.share_of_read is not None
            assert close(each.share_of_read, 1e6 * each.bytes / each.us / found["ceilings"]["read_bytes_per_s"])
    decodes = [each for each in figures if each.op == "attention_decode" and each.case == "decode"]
    assert [(each.lanes, each.rows, each.bytes) for each in decodes] == [
        (lanes, rows, lanes * 65 * 2048) for lanes in (1, 2) for rows in (1, 2)
    ]
    (mixed,) = (each for each in figures if each.case == "decode, each half as long")
    assert mixed.bytes == (65 + 64) * 2048


def test_all_products_of_a_round_are_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """But for the small ones."""
    chosen = reported(capsys, "kernels", "--only", "products", "--rows", "1", "--prefill-rows", "3")["figures"]
    kinds = [each for each in chosen if each["rows"] == 1 and " x " in each["case"]]
    (chain,) = (each for each in chosen if each["case"].startswith("all "))
    layers = {"gated delta": 6, "attention": 2, "gate and": 8, "down": 8, "head": 1}
    counts = [next(count for name, count in layers.items() if each["case"].startswith(name)) for each in kinds]
    assert chain["case"] == f"all {sum(counts)} products of a round"
    (blocks,) = (each for each in chosen if each["op"] == "dense_block")
    first, head = (each["bytes"] for each in kinds if each["case"].startswith(("gated delta in", "head")))
    assert blocks["bytes"] == chain["bytes"] - first - head
    assert chain["bytes"] == sum(count * each["bytes"] for count, each in zip(counts, kinds, strict=True))


def test_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = f"synthetic:{written(tmp_path, MOE)}"
    arguments = ("--rows", "1", "--prefill-rows", "4", "--lanes", "1")
    found = reported(capsys, "kernels", "--model", model, "--only", "products", "norms", *arguments)
    assert {"router 5 x 256", "shared gate and up 256 x 256"} <= {each["case"] for each in found["figures"]}


def test_start(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninferd.benchmarks.start._daemon_seconds", lambda options: 1.5)
    monkeypatch.setattr("ninferd.benchmarks.start._phases", lambda options, rate: iter(()))
    found = reported(capsys, "start", "--lanes", "1", "--context", "64")
    assert found["model"] is None
    assert [each["phase"] for each in found["figures"]] == [
        "reading the files, in the page cache",
        "daemon, process to READY",
    ]


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Where, the ceilings, the model; then the figures below their headings, in columns."""
    assert main(["bench", "prefill", "--device", "cpu", *PREFILL]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    where, reached, model, heading, *figures = printed.out.splitlines()
    assert where.startswith("cpu, ")
    assert reached.startswith("ceilings: read ")
    assert model.startswith("ninfer-tiny: ")
    assert heading.split()[:3] == ["kv", "prompt", "chunk"]
    assert [line.split()[:3] for line in figures] == [["fp32", "40", "128"], ["fp32", "200", "128"]]
    assert len({len(line) for line in (heading, *figures)}) == 1


def test_what_cannot_be_measured_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes whose caches do not fit; the others are measured."""
    monkeypatch.setattr("ninferd.engine.build.free_host_bytes", lambda: GIB + (30 << 20))
    found = reported(capsys, "decode", "--lanes", "1", "8", "--contexts", "4000", "--rounds", "2")
    assert [each["lanes"] for each in found["figures"]] == [1]
    assert found["skipped"] == [{"what": "fp32, 8 lanes of 4000 tokens", "reason": "the caches do not fit"}]
    monkeypatch.setattr("ninferd.engine.build.free_host_bytes", lambda: GIB)
    (skipped,) = reported(capsys, "decode", "--lanes", "1", "--contexts", "4000", "--rounds", "2")["skipped"]
    assert skipped["reason"].startswith("caches do not fit: ")


def test_weights_that_do_not_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninferd.engine.build.free_host_bytes", lambda: 1 << 20)
    assert main(["bench", "decode", "--device", "cpu", *DECODE]) == 2
    assert "the weights do not fit on the host: they need" in capsys.readouterr().err.splitlines()[-1]


def test_a_cache_of_attention_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are left out; nothing is allocated for them."""
    contexts = ("--contexts", "64", "9999999999999")
    found = reported(capsys, "kernels", "--only", "attention", "--rows", "1", "--lanes", "1", *contexts)
    assert {each["context_tokens"] for each in found["figures"]} == {64}
    (skipped,) = found["skipped"]
    assert skipped["what"] == "attention over fp32, 1 lanes of up to 9999999999999 tokens"
    assert skipped["reason"].startswith("a cache of 20480000.00 GB does not fit into ")


@pytest.mark.parametrize(
    "arguments", [["decode", "--lanes", "1", "--contexts", "60", "--rounds", "2"], ["prefill", "--prompts", "9"]]
)
def test_codecs_that_cannot_store_the_heads(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rope = DENSE["rope_parameters"] | {"mrope_section": [8, 8, 8]}
    model = f"synthetic:{written(tmp_path, DENSE | {'head_dim': 96, 'rope_parameters': rope})}"
    found = reported(capsys, *arguments, "--model", model, "--kv-dtypes", "nvfp4", "fp32")
    assert [each["kv_dtype"] for each in found["figures"]] == ["fp32"]
    assert found["skipped"] == [{"what": "nvfp4", "reason": "heads of 96 cannot be stored in it"}]


def test_memory_that_runs_out_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "append", "--prefill-rows", "100000000000000"]
    assert main(["bench", "kernels", "--device", "cpu", *arguments]) == 1
    assert capsys.readouterr().err.startswith("ninferd: memory ran out, measure less at once: ")


def test_families_are_those_of_the_command_line() -> None:
    assert tuple(families()) == FAMILIES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--lanes", "9"], "argument --lanes: 9 is more than 8"),
        (["decode", "--lanes", "0"], "argument --lanes: '0' is not a whole number from 1 on"),
        (["decode", "--rows", "17"], "argument --rows: 17 is more than 16"),
        (["decode", "--contexts", "8k"], "argument --contexts: '8k' is not a whole number from 1 on"),
        (["decode", "--kv-dtypes", "fp4"], "argument --kv-dtypes: invalid choice: 'fp4'"),
        (["kernels", "--only", "conv"], "argument --only: invalid choice: 'conv'"),
        (["prefill", "--device", "gpu"], "argument --device: 'gpu' is not auto, cpu or a number"),
        (["start", "--lanes", "9"], "argument --lanes: 9 is more than 8"),
        (["start", "--rounds", "3"], "unrecognized arguments: --rounds 3"),
        ([], "the following arguments are required: BENCHMARK"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--model", "/nowhere"], "model.artifact: /nowhere does not exist"),
        (["decode", "--model", "embedded:none"], "there is no embedded model 'none'; known: embedded:ninfer-tiny"),
        (["prefill", "--model", "synthetic:qwen9"], "qwen9: is neither a published model nor a config.json"),
        (["prefill", "--model", "synthetic:qwen3.8-27b:best"], "best"),
        (["start", "--model", "synthetic:qwen3.8-27b"], "a start loads files"),
        (["prefill", "--chunks", "200"], "--chunks: 200 is not a multiple of 128"),
        (["prefill", "--chunks", "1048704"], "--chunks: 1048704 is not a multiple of 128 up to 1048576"),
        (["prefill", "--device", "1000"], "engine.device is 1000, but torch sees"),
        (["decode", "--contexts", "20", "--rounds", "8"], "20 tokens of context are too few for 8 rounds"),
        (["decode", "--contexts", "99999999"], "99999999 tokens of context are too many, this model reaches 32768"),
        (["prefill", "--prompts", "99999999"], "100000000 tokens of context are too many, this model reaches 32768"),
        (["start", "--context", "99999999"], "99999999 tokens of context are too many, this model reaches 32768"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_runs(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert main(["bench", *arguments, *device]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("ninferd: ")
    assert message in last
