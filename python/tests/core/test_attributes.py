from types import SimpleNamespace

from gpukeras.core.attributes import replaced


def test_attributes_are_replaced_for_a_while():
    target = SimpleNamespace(kept=1)
    with replaced(target, kept=2, new=3):
        assert (target.kept, target.new) == (2, 3)
    assert vars(target) == {"kept": 1}
