from tests.builders import TraceBuilder
from tests.running import run


def test_copies_have_bytes_and_a_rate_per_direction() -> None:
    trace = (
        TraceBuilder()
        .copy("h2d", 0, 10, n_bytes=100)
        .copy("h2d", 5, 15, n_bytes=300)
        .copy("d2h", 20, 30, n_bytes=50)
        .build()
    )
    table = run("copies", trace).to_frame().set_index("direction")
    assert table.loc["h2d", ["count", "total_ns", "busy_ns", "size_bytes"]].tolist() == [
        2,
        20,
        15,
        400,
    ]
    assert table.loc["h2d", "rate_bytes_per_s"] == 400 / 20e-9
    assert table.loc["d2h", "rate_bytes_per_s"] == 50 / 10e-9
