"""Buckets include their bound, and the cumulative rows end with everything."""

from triolet.actors.histogram import Histogram


def test_observations_fall_into_the_bucket_that_bounds_them() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 99):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("2.5", 3), ("+Inf", 4)]
    assert (histogram.count, histogram.sum) == (4, 102.5)
