"""Tables of the engine child: device and shapes, speculation, prefix cache, media."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ninferd.config.field import PathValue, Table, Texts, key

KvDtype = Literal["bf16", "fp32", "int8", "fp8", "nvfp4", "k8v4"]


class EngineSettings(Table):
    """Where and with which shapes the model runs."""

    device: Literal["auto", "cpu"] | Annotated[int, Field(ge=0, le=1023)] = key(
        "auto",
        "CUDA device number, cpu, or auto: the first CUDA device if there is one, else the CPU.",
        reload="engine",
        flag="--device",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = key(
        "auto",
        "Arithmetic of unquantised weights; auto is the checkpoint's own on CUDA and float32 on the CPU.",
        reload="engine",
    )
    max_context: int = key(
        8192,
        "Longest prompt plus output of one request; what clients see as max_model_len. At most the model's native "
        "window times engine.rope_scaling_factor.",
        reload="engine",
        unit="tokens",
        flag="--max-context",
        ge=1,
        le=8_388_608,
    )
    kv_capacity: Annotated[int, Field(ge=1, le=2_147_483_647)] | Literal["auto"] | None = key(
        None,
        "Tokens of all sequences together that the device cache holds, rounded up to pages of 64. Unset: "
        "engine.max_context. auto: what fits, less 1 GiB.",
        reload="engine",
        unit="tokens",
        flag="--kv-capacity",
    )
    max_concurrency: int = key(
        1, "Requests that run together.", reload="engine", unit="lanes", flag="--max-concurrency", ge=1, le=8
    )
    prefill_chunk: int = key(
        1024,
        "Prompt tokens computed in one step. A bigger chunk makes other streams wait longer.",
        reload="engine",
        unit="tokens",
        flag="--prefill-chunk",
        ge=128,
        le=1_048_576,
        multiple_of=128,
    )
    kv_dtype: KvDtype = key(
        "bf16",
        "Stored form of attention keys and values: fp32 or bf16 as they are, or quantised with rotated keys. fp8 and "
        "int8 take about half of bf16, k8v4 (fp8 keys, nvfp4 values) 39 %, nvfp4 28 %.",
        reload="engine",
        flag="--kv-dtype",
    )
    prefill_activations: Literal["bf16", "nvfp4"] = key(
        "bf16",
        "What a prompt's activations are rounded to before they meet NVFP4 weights. nvfp4 lets the FP4 tensor cores of "
        "sm_100a and sm_120a multiply, at a little quality; cards without them, and kernels that fail their self-test, "
        "stay with bf16 and say so. It has never run on such a card.",
        reload="engine",
    )
    cuda_graph: bool = key(True, "Replay decode rounds as captured CUDA graphs.", reload="engine", flag="--cuda-graph")
    prefix_reuse: bool = key(
        True,
        "Never compute a prompt prefix twice. Off excludes every capacity key of [cache].",
        reload="engine",
        flag="--prefix-reuse",
    )
    rope_scaling_factor: float = key(
        1.0,
        "Compresses positions beyond engine.rope_scaling_original_context by this factor.",
        reload="engine",
        flag="--rope-scaling-factor",
        ge=1.0,
        le=32.0,
    )
    rope_scaling_original_context: int = key(
        262_144,
        "Positions up to here stay as they are.",
        reload="engine",
        unit="tokens",
        flag="--rope-scaling-original-context",
        ge=1,
        le=8_388_608,
    )
    context_cost_presets: PathValue | None = key(
        None,
        "File of measured costs of copies and prefill, used to rank what to keep. Unset: built-in estimates.",
        reload="engine",
        flag="--context-cost-presets",
    )
    cuda_sync: Literal["spin", "blocking", "yield", "auto"] = key(
        "spin", "How the engine thread waits for the device.", reload="engine"
    )


class SpecSettings(Table):
    """Speculative decoding."""

    backend: Literal["mtp", "dflash", "dflash2"] | None = key(
        None,
        "Drafter; its weights must be in the artifact. Unset: off.",
        reload="engine",
        flag="--spec",
    )
    draft_tokens: int | None = key(
        None,
        "Tokens drafted per round: 1..5 with mtp, 1..15 with dflash and dflash2. Required with spec.backend.",
        reload="engine",
        unit="tokens",
        flag="--draft-tokens",
        ge=1,
        le=15,
    )
    lm_head_draft: bool = key(
        False,
        "Draft through the artifact's reduced output head. Needs spec.backend.",
        reload="engine",
        flag="--lm-head-draft",
    )


class CacheSettings(Table):
    """What is kept of finished turns, on the device and in pinned host memory."""

    device_state_slots: int | None = key(
        None,
        "Recurrent-state images on the device beyond the running ones. Unset: engine.max_concurrency.",
        reload="engine",
        unit="slots",
        flag="--device-state-slots",
        ge=0,
        le=1_000_000,
    )
    host_state_slots: int = key(
        8,
        "Recurrent-state images in host memory; also the floor when memory is given back.",
        reload="engine",
        unit="slots",
        flag="--host-state-slots",
        ge=0,
        le=1_000_000,
    )
    host_kv_mib: int = key(
        8192,
        "Ceiling of pinned host memory for cached conversations; it starts at a quarter and grows. 0 is none.",
        reload="engine",
        unit="MiB",
        flag="--host-kv-mib",
        ge=0,
        le=16_777_216,
    )
    host_ram_reserve_mib: int = key(
        3072,
        "Available memory of the machine that growth must leave.",
        reload="live",
        unit="MiB",
        flag="--host-ram-reserve-mib",
        ge=0,
        le=16_777_216,
    )
    host_pinned_max_mib: int = key(
        0,
        "Hard ceiling of all pinned memory; 0 is none.",
        reload="engine",
        unit="MiB",
        flag="--host-pinned-max-mib",
        ge=0,
        le=16_777_216,
    )
    host_chunk_mib: int = key(
        256,
        "Step by which pinned memory grows and shrinks.",
        reload="engine",
        unit="MiB",
        flag="--host-chunk-mib",
        ge=1,
        le=16_777_216,
    )
    max_private_continuations: int | None = key(
        None,
        "Conversations kept. Unset: 2 x engine.max_concurrency.",
        reload="engine",
        unit="conversations",
        flag="--max-private-continuations",
        ge=0,
        le=1_000_000,
    )
    max_shared_prefixes: int | None = key(
        None,
        "Common prefixes kept apart from conversations. Unset: the larger of engine.max_concurrency and 4.",
        reload="engine",
        unit="prefixes",
        flag="--max-shared-prefixes",
        ge=0,
        le=1_000_000,
    )
    max_long_anchors: int = key(
        2,
        "Intermediate snapshots kept along a long conversation.",
        reload="engine",
        unit="snapshots",
        flag="--max-long-anchors-per-continuation",
        ge=0,
        le=1_000_000,
    )


class MediaSettings(Table):
    """Images and video."""

    vision: bool = key(False, "Load the vision encoder and accept media.", reload="engine", flag="--vision")
    vision_cpu: bool = key(
        False,
        "Keep the vision encoder in host memory and run it on the CPU; implies vision, slow for media.",
        reload="engine",
        flag="--vision-cpu",
    )
    cache_mib: int = key(
        1024,
        "Prepared media kept for reuse; 0 keeps none.",
        reload="live",
        unit="MiB",
        flag="--media-cache-mib",
        ge=0,
        le=1_048_576,
    )
    live_mib: int = key(
        2048,
        "All prepared media in memory at one time; must hold one prompt of the largest size (384 MiB).",
        reload="process",
        unit="MiB",
        flag="--media-live-mib",
        ge=1,
        le=1_048_576,
    )
    preprocess_threads: int = key(
        0,
        "Threads that decode and resize media; 0 is min(16, CPUs).",
        reload="process",
        unit="threads",
        flag="--media-preprocess-threads",
        ge=0,
        le=64,
    )
    allow_http: bool = key(True, "Fetch media from http(s) URLs; false accepts data URIs only.", reload="live")
    allow_hosts: Texts = key((), "Hosts that media may come from; empty is any public host.", reload="live")
