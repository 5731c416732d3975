from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.daemon.gpu_info import GpuDevice, GpuReport
from ninferd.daemon.memory_info import HostMemory
from ninferd.daemon.preflight import DoesNotFitError, Machine, choose_device, run_preflight
from ninferd.daemon.units import format_bytes
from ninferd.errors import InputError
from ninferd.memory.budget import HEADROOM_BYTES
from tests.daemon.artifacts import CONFIG, bytes_in_tiles, loaded_bytes, text_tensors, write_artifact
from tests.daemon.support import settings

MIB, GIB = 1 << 20, 1 << 30
PAGE_BYTES = 2 * 2 * 256 * 64 * 2  # K and V, 2 heads of 256, 64 tokens, bf16
SLOT_BYTES = 3 * (1024 * 3 * 4 + 4 * 128 * 128 * 4)  # 3 layers: float32 conv history of 2*256+512 channels, state
WEIGHTS = {"float32": bytes_in_tiles(), "bfloat16": loaded_bytes(CONFIG, 2)}  # of engine.dtype on the CPU
NO_GPU = GpuReport(problem="NVML: no device")


def machine(*, host: int = 64 * GIB, gpus: GpuReport = NO_GPU, cuda: bool = True) -> Machine:
    return Machine(HostMemory(128 * GIB, 64 * GIB, host, 8 * MIB), gpus, torch_has_cuda=cuda)


def gpu(free: int, index: int = 0) -> GpuDevice:
    return GpuDevice(index, "Card", (12, 0), 32 * GIB, free)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Some 143 Mi elements in bf16."""
    return write_artifact(tmp_path, CONFIG, text_tensors())


def test_plan_on_the_cpu(artifact: Path) -> None:
    engine: dict[str, object] = {"max_context": 1000, "max_concurrency": 2}
    report = run_preflight(settings(str(artifact), engine=engine), machine())
    assert report.device is None
    assert report.weights_bytes == WEIGHTS["float32"]
    assert report.capacity.kv_bytes == 16 * PAGE_BYTES
    assert report.capacity.state_bytes == 2 * SLOT_BYTES


@pytest.mark.parametrize(
    ("kv_dtype", "token_bytes"),
    [("fp32", 2048), ("bf16", 1024), ("int8", 528), ("fp8", 516), ("k8v4", 402), ("nvfp4", 288)],
)
def test_bytes_of_every_kv_dtype(artifact: Path, kv_dtype: str, token_bytes: int) -> None:
    """Of a token and kv head of 256 dimensions, as in spec/memory §1.2; there is one layer of two heads."""
    engine: dict[str, object] = {"max_context": 1000, "kv_dtype": kv_dtype, "kv_capacity": 2000}
    plan = run_preflight(settings(str(artifact), engine=engine), machine()).capacity
    assert (plan.pages, plan.kv_bytes) == (32, 32 * 64 * 2 * token_bytes)


def test_heads_that_a_kv_dtype_cannot_store_are_refused(tmp_path: Path) -> None:
    config = CONFIG | {"head_dim": 320, "rope_parameters": CONFIG["rope_parameters"] | {"partial_rotary_factor": 0.2}}
    path = write_artifact(tmp_path, config, text_tensors(config))
    with pytest.raises(InputError, match=r"engine\.kv_dtype is int8, but int8 keys .* not 320; bf16 stores"):
        run_preflight(settings(str(path), engine={"kv_dtype": "int8"}), machine())


def test_table_says_what_goes_where(artifact: Path) -> None:
    text = "\n".join(run_preflight(settings(str(artifact)), machine()).lines())
    assert f"{artifact} (Qwen3_5ForCausalLM) on the CPU" in text
    assert "Hugging Face directory; loaded: text" in text
    assert "weights bf16: embedding bf16; gdn bf16 in 3; mlp bf16 in 4; attention bf16 in 1; a/b separate" in text
    rows = {line[:34].strip(): line[34:].split() for line in text.splitlines()[4:]}
    assert rows["weights"] == [*format_bytes(WEIGHTS["float32"]).split(), "-"]
    assert rows["KV cache, 8,192 tokens"] == ["16.0", "MiB", "-"]
    assert rows["available"] == ["64.0", "GiB", "-"]
    assert "host: 64.0 GiB of 128.0 GiB free, 8.0 MiB lockable" in text
    assert "no GPU (NVML: no device)" in text


def test_table_names_the_limit_of_the_control_group(artifact: Path) -> None:
    text = "\n".join(run_preflight(settings(str(artifact)), machine(host=4 * GIB)).lines())
    assert "host: 64.0 GiB of 128.0 GiB free, 4.0 GiB within the limit of the control group" in text


def test_plan_on_a_gpu_keeps_the_stored_type(artifact: Path) -> None:
    report = run_preflight(settings(str(artifact)), machine(gpus=GpuReport("575.1", (gpu(20 * GIB),))))
    assert report.weights_bytes == WEIGHTS["bfloat16"]
    text = "\n".join(report.lines())
    assert "on device 0: Card, sm_120, driver 575.1" in text
    assert "GPU 0 Card: 20.0 GiB of 32.0 GiB free" in text
    expected = ["weights", "-", *format_bytes(WEIGHTS["bfloat16"]).split()]
    assert any(line.split() == expected for line in text.splitlines())


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_explicit_type_decides(artifact: Path, dtype: str) -> None:
    assert run_preflight(settings(str(artifact), engine={"dtype": dtype}), machine()).weights_bytes == WEIGHTS[dtype]


def test_weights_that_do_not_fit_are_refused_with_numbers(artifact: Path) -> None:
    with pytest.raises(
        DoesNotFitError, match=rf"need {format_bytes(WEIGHTS['float32'])} of host memory, available: 500.0 MiB"
    ):
        run_preflight(settings(str(artifact)), machine(host=500 * MIB))


def test_caches_that_do_not_fit_are_refused_with_numbers(artifact: Path) -> None:
    needed = 128 * PAGE_BYTES + SLOT_BYTES + HEADROOM_BYTES
    fits = machine(host=WEIGHTS["float32"] + needed)
    assert run_preflight(settings(str(artifact)), fits).capacity.pages == 128
    with pytest.raises(DoesNotFitError, match="caches do not fit: 128 pages"):
        run_preflight(settings(str(artifact)), machine(host=WEIGHTS["float32"] + needed - 1))


def test_what_the_running_engine_gives_back_counts(artifact: Path) -> None:
    run_preflight(settings(str(artifact)), machine(host=500 * MIB), reclaimable_bytes=4 * GIB)


def test_free_device_memory_counts_not_host_memory(artifact: Path) -> None:
    small = machine(gpus=GpuReport("575.1", (gpu(100 * MIB),)))
    with pytest.raises(
        DoesNotFitError, match=rf"need {format_bytes(WEIGHTS['bfloat16'])} of memory of device 0, available: 100.0 MiB"
    ):
        run_preflight(settings(str(artifact)), small)


def test_context_beyond_the_model_is_refused(artifact: Path) -> None:
    with pytest.raises(InputError, match=r"engine.max_context is 40000 tokens, this model reaches 32768"):
        run_preflight(settings(str(artifact), engine={"max_context": 40000}), machine())


def test_missing_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        run_preflight(settings(str(tmp_path / "gone")), machine())


TWO = GpuReport("575.1", (gpu(GIB, 0), gpu(2 * GIB, 1)))


@pytest.mark.parametrize(
    ("wanted", "there", "chosen"),
    [
        ("cpu", machine(gpus=TWO), None),
        ("auto", machine(gpus=TWO), 0),
        ("auto", machine(gpus=TWO, cuda=False), None),
        ("auto", machine(), None),
        (1, machine(gpus=TWO), 1),
    ],
    ids=["cpu", "auto", "auto-cpu-torch", "auto-no-gpu", "second"],
)
def test_choose_device(wanted: str | int, there: Machine, chosen: int | None) -> None:
    device = choose_device(settings(engine={"device": wanted}), there)
    assert (None if device is None else device.index) == chosen


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (machine(), "engine.device is 2, but NVML: no device"),
        (machine(gpus=TWO), "engine.device is 2, but there are 2 devices"),
        (machine(gpus=TWO, cuda=False), "engine.device is 2, but torch is a CPU build"),
    ],
    ids=["no-gpu", "too-few", "cpu-torch"],
)
def test_absent_device_is_refused(there: Machine, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        choose_device(settings(engine={"device": 2}), there)


def test_this_machine_can_be_read() -> None:
    assert Machine.read({}).host.available_bytes > 0
