"""Programs compiled for cards that are not here, in the environment that can compile them."""

import json
import os
import subprocess
import textwrap

import pytest
from children import CORE, PATIENCE_S, run_script
from compilers import PYTHON, needs_compiler

MAKE_LOOP = """
    import jax, numpy as np

    def loop(state, rows, count):
        step = lambda i, s: s + jax.numpy.tanh(jax.lax.dynamic_slice_in_dim(rows, i * 8, 8) @ s).mean(0)
        return jax.lax.fori_loop(0, count, step, state)

    jitted = jax.jit(loop, donate_argnums=0, static_argnums=2)
    arguments = np.zeros((32, 32), np.float32), np.zeros((800, 32), np.float32), 64
"""  # noqa: E501


def compile_there(body):
    script = textwrap.dedent(MAKE_LOOP) + textwrap.dedent(body)
    script += "\nimport json; print('\\n' + json.dumps(answer))"
    child = subprocess.run(
        [PYTHON, "-c", script],
        env={**os.environ, "PYTHONPATH": str(CORE), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.slow
@needs_compiler
def test_a_loop_is_compiled_for_the_oldest_and_the_newest_cards():
    found = compile_there(
        """
        from gpukeras.profiler.aot.compile import compile_for
        from gpukeras.system.cards import choose_card

        answer = []
        for name in ("GTX 1060", "V100", "RTX 3060", "B200", "RTX 5090"):
            made = compile_for(choose_card(name), jitted, *arguments)
            memory, loop = vars(made.memory), made.loop
            answer.append([made.card, memory, loop.trip_count, loop.kernels, loop.launches])
            assert not made.host_transfers and not made.conditionals
        """
    )
    for card, memory, trips, kernels, launches in found:
        assert memory["arguments"] == (32 * 32 + 800 * 32) * 4
        assert memory["outputs"] == memory["aliased"] == 32 * 32 * 4
        assert trips == 64
        assert 1 <= launches <= kernels <= 8, card
    assert [one[0] for one in found][1] == "V100 SXM2 16GB"


@pytest.mark.slow
@needs_compiler
def test_an_unknown_trip_count_and_a_missing_donation_are_seen():
    found = compile_there(
        """
        from gpukeras.profiler.aot.compile import compile_for
        from gpukeras.system.cards import choose_card

        made = compile_for(choose_card("T4"), jax.jit(loop), *arguments)
        answer = made.loop.trip_count, made.memory.aliased
        """
    )
    assert found == [None, 0]


@pytest.mark.jax
def test_the_memory_of_a_program_of_this_computer_is_that_of_its_arrays():
    found = run_script(
        textwrap.dedent(MAKE_LOOP)
        + textwrap.dedent(
            """
            from gpukeras.profiler.aot.compile import read_memory

            compiled = jitted.lower(*arguments).compile()
            memory = read_memory(compiled)
            answer = [memory.arguments, memory.outputs, memory.aliased, memory.total]
            """
        ),
        KERAS_BACKEND="jax",
    )
    state, rows = 32 * 32 * 4, 800 * 32 * 4
    assert found[:3] == [state + rows, state, state]
    assert found[3] >= state + rows
