"""Which models train at a time, and why."""

from gpukeras.many.plan import MOST, ModelFacts, plan_stacks

SMALL = ModelFacts(1000, 100)


def plan(structures, free_bytes=None, most="auto", facts=SMALL):
    sizes = [10] * len(structures)
    settings = [0] * len(structures)
    return plan_stacks(structures, sizes, [facts], settings, free_bytes=free_bytes, most=most)


def test_models_of_one_structure_train_together():
    found = plan(["a"] * 4)
    assert found.stacks == ((0, 1, 2, 3),)
    assert found.reason == "4 models of one structure: those of one structure train together"


def test_each_structure_has_stacks_of_its_own():
    found = plan(["a", "b", "a"])
    assert found.stacks == ((0, 2), (1,))
    assert (found.structures, found.most) == (2, 2)


def test_memory_limits_a_stack():
    found = plan(["a"] * 5, free_bytes=2 * SMALL.bytes * 3)
    assert found.stacks == ((0, 1, 2), (3, 4))
    assert "as many as fit into half of the free memory" in found.reason


def test_one_model_trains_however_little_memory_is_free():
    assert plan(["a"] * 2, free_bytes=1.0).most == 1


def test_more_models_than_are_faster_train_in_turns():
    found = plan(["a"] * (MOST + 1))
    assert len(found.stacks) == 2
    assert "more at a time are not faster" in found.reason
