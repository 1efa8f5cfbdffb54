"""Launch tables answer for every size and every device, measured or not."""

import pytest

from triolet.kernels.gpu.table import LaunchRow, Table, choose

TABLE: Table[str] = {
    80: (LaunchRow(16, "narrow", "for the test"), LaunchRow(None, "wide", "for the test")),
    90: (LaunchRow(None, "new", "for the test"),),
}


@pytest.mark.parametrize(
    ("capability", "size", "launch"),
    [(80, 16, "narrow"), (80, 17, "wide"), (89, 1, "narrow"), (90, 1, "new"), (120, 99, "new"), (75, 1, "narrow")],
)
def test_a_device_takes_the_newest_rows_that_are_not_newer(capability: int, size: int, launch: str) -> None:
    assert choose(TABLE, capability, size) == launch


def test_a_table_without_a_last_row_is_a_bug_that_shows() -> None:
    with pytest.raises(ValueError, match="no row for size 5"):
        choose({80: (LaunchRow(4, "small", "for the test"),)}, 80, 5)
