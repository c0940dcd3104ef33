"""HLO as XLA writes it, shortened: what is read of each line."""

import pytest

from gpukeras.profiler.aot import hlo

# The program of support/xla_dump, for a V100.
HLO = """
%region_5.6 (arg.1: f32[256,256]) -> f32[256,256] {
  %cond.0.clone.4 = (f32[256,256]{1,0}) conditional(%loop_compare_fusion.2, %tuple.22.0, %tuple.22.0), true_computation=%region_6.7, false_computation=%region_5.6
  %while.24 = (s32[], f32[256,256]{1,0}) while(%tuple.25), condition=%region_2.3, body=%region_1.2, backend_config={"known_trip_count":{"n":"5"}}
  %while.25 = (s32[], pred[]) while(%tuple.26), condition=%region_2.4, body=%region_1.4, backend_config={"dynamic_variables":[]}
}

ENTRY %main.13 (s.1: f32[256,256], x.1: f32[64,256,256]) -> f32[256,256] {
  %constant_25_0 = s32[] constant(0)
  %copy.19 = s32[] copy(%constant_25_0)
  %x.1 = f32[64,256,256]{2,1,0} parameter(1), sharding={replicated}
  %wrapped_transpose = f32[256,64,256]{2,1,0} fusion(%x.1), kind=kInput, calls=%computation
  %custom-call.1 = (f32[256,256]{1,0}, s8[4194304]{0}) custom-call(%copy.19), custom_call_target="__cublas$lt$matmul"
  %while.26 = (s32[], f32[256,256]{1,0}) while(%tuple.30), condition=%region_8, body=%region_0, backend_config={"known_trip_count":{"n":"64"},"known_init_step":{"init":"0","step":"1"}}
  ROOT %while.17.0 = f32[256,256]{1,0} get-tuple-element(%while.26), index=1
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[256,256]{1,0}", 262144),
        ("s32[]", 4),
        ("(s32[], bf16[8,2]{1,0})", 36),
        ("pred[3]", 3),
        ("f8e4m3fn[10]", 10),
        ("u4[3]", 2),
        ("token[]", 0),
        ("c64[2]", 16),
    ],
)
def test_bytes_of_a_shape(shape, size):
    assert hlo.count_bytes(shape) == size


def test_trip_counts_of_all_loops():
    assert hlo.read_trip_counts(HLO) == {"while.24": 5, "while.25": None, "while.26": 64}


def test_the_entry_has_what_takes_memory():
    found = {one.name: one.bytes for one in hlo.read_entry(HLO)}
    transposed, workspace = 64 * 256 * 256 * 4, 256 * 256 * 4 + 4194304
    assert found == {
        "copy.19": 4,
        "wrapped_transpose": transposed,
        "custom-call.1": workspace,
    }


def test_conditionals_are_counted():
    assert hlo.count_conditionals(HLO) == 1
    assert hlo.count_conditionals(HLO.replace("conditional(", "fusion(")) == 0


@pytest.mark.parametrize(
    "line",
    [
        '%cc = f32[2]{0} custom-call(%a), custom_call_target="xla_ffi_python_gpu_callback"',
        '%cc = f32[2]{0} custom-call(%a), custom_call_target="annotate_MoveToHost"',
        "%cc = ((f32[2]{0}), token[]) infeed(%token)",
        "%cc = f32[2]{0:T(128)S(5)} copy(%a)",
    ],
)
def test_exchanges_with_the_host_are_found(line):
    assert hlo.find_host_transfers(HLO) == ()
    assert hlo.find_host_transfers(HLO.replace("ENTRY", f"  {line}\nENTRY")) == ("cc",)
