"""The engine benchmark runs, and its agreement with a plain forward pass is within its bounds."""

from arl.bench.engine import bench_engine


def test_the_benchmark_reports_rates_and_agreement() -> None:
    report = bench_engine(num_requests=12, slots=8, repeats=1)
    assert report["ratio"] > 0
    assert report["logprob_mean_abs_diff"] <= 1e-6
    assert report["logprob_max_abs_diff"] <= 2e-4
