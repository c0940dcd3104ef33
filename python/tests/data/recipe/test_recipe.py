import numpy as np
import pytest
from frames import learn_columns

from gpukeras import DataError
from gpukeras.data.recipe.recipe import check_columns, check_names


class Counted(str):
    """A name that counts how often it is compared with another."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("search", ["repeated", "missing"])
def test_names_of_many_columns_are_not_each_compared_with_all_others(search):
    names = [Counted(f"column {place}") for place in range(2000)]
    given = [Counted(name) for name in names]
    columns = [
        {"name": name, "kind": "numeric", "values": np.arange(4.0), "levels": []}
        for name in names[-50:]
    ]
    recipe = learn_columns(columns, np.ones(4, dtype=bool), True, "onehot")
    Counted.compared = 0
    if search == "repeated":
        check_names(names, "x")
    else:
        check_columns(recipe, given, "x")
    assert Counted.compared < 2 * len(names)
    with pytest.raises(DataError, match="has more than one column `column 7`"):
        check_names([*names, names[7], names[9]], "x")
    with pytest.raises(DataError, match="lacks the column `column 1953`"):
        check_columns(recipe, given[:1953] + given[1954:], "x")
