"""A damaged file of a run, a benchmark or an audit has no effect or is named in an error. See ``attack.py``."""

import pytest

from attack import attack, table


@pytest.mark.slow
def test_damage_is_noticed(tmp_path):
    """One kind of damage per file."""
    counts, silent = attack(tmp_path, rounds=1, ways=1)
    assert silent == []
    assert sum(count.noticed for count in counts.values()) >= 15


@pytest.mark.kill
def test_a_thousand_mutations(tmp_path, capsys):
    counts, silent = attack(tmp_path, rounds=8, seed=1)
    with capsys.disabled():
        print(f"\n{table(counts)}")
    assert silent == []
    assert sum(count.total for count in counts.values()) >= 1000
