"""Describes a card to XLA, so that it compiles for one that is not here.

XLA reads a text proto `GpuTargetConfigProto`; its repository has files for some cards (openxla/xla,
xla/backends/gpu/target_config/specs/*.txtpb). A multiprocessor's limits are those of its compute
capability: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from dataclasses import dataclass

from gpukeras.system.cards import Card

# As in XLA's own files. Without versions XLA takes them as 0, and makes no CUDA graphs.
CUDA_VERSION, CUDNN_VERSION = "12.8.0", (9, 10, 0)


@dataclass(frozen=True)
class Multiprocessor:
    """What a streaming multiprocessor has.

    Args:
        fpus: Units for float32.
        threads: The most threads at once.
        shared_kib: KiB of shared memory.
        block_kib: KiB of it that one block may ask for.
    """

    fpus: int
    threads: int
    shared_kib: int
    block_kib: int


MULTIPROCESSORS = {
    (6, 0): Multiprocessor(64, 2048, 64, 48),
    (6, 1): Multiprocessor(128, 2048, 96, 48),
    (7, 0): Multiprocessor(64, 2048, 96, 96),
    (7, 5): Multiprocessor(64, 1024, 64, 64),
    (8, 0): Multiprocessor(64, 2048, 164, 163),
    (8, 6): Multiprocessor(128, 1536, 100, 99),
    (8, 9): Multiprocessor(128, 1536, 100, 99),
    (9, 0): Multiprocessor(128, 2048, 228, 227),
    (10, 0): Multiprocessor(128, 2048, 228, 227),
    (12, 0): Multiprocessor(128, 1536, 100, 99),
}
# XLA makes code for these chips alone ("9.0a"), which has instructions that others lack.
ACCELERATED = ((9, 0), (10, 0))


def describe_target(card: Card) -> str:
    """Returns a card as XLA's text proto `GpuTargetConfigProto`."""
    each = MULTIPROCESSORS[card.capability]
    major, minor = card.capability
    extension = "ACCELERATED_FEATURES" if card.capability in ACCELERATED else "NONE"
    dnn_major, dnn_minor, dnn_patch = CUDNN_VERSION
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {each.shared_kib * 1024}
  shared_memory_per_block_optin: {each.block_kib * 1024}
  threads_per_core_limit: {each.threads}
  core_count: {card.sms}
  fpus_per_core: {each.fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {round(card.bandwidth_gbs * 1e9)}
  l2_cache_size: {card.l2_kib * 1024}
  clock_rate_ghz: {card.clock_mhz / 1000}
  device_memory_size: {card.memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  name: "{card.name}"
  driver_version: "{CUDA_VERSION}"
  runtime_version: "{CUDA_VERSION}"
  compile_time_toolkit_version: "{CUDA_VERSION}"
  dnn_version: "{dnn_major}.{dnn_minor}.{dnn_patch}"
}}
platform_name: "CUDA"
dnn_version_info {{ major: {dnn_major} minor: {dnn_minor} patch: {dnn_patch} }}
device_description_str: "{card.name}"
"""
