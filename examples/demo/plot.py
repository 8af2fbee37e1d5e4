"""The picture of a run: revenue by window and city, and how far the pipeline was behind the orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import matplotlib

matplotlib.use("Agg")  # no display is needed

from matplotlib import dates
from matplotlib import pyplot as plt
from matplotlib.ticker import EngFormatter

COLORS = ("#1b6ca8", "#e0a030", "#3c9d6b", "#b8496b")


@dataclass(frozen=True)
class Sample:
    """The state at one time of the run, in seconds since 1970; None if the pipeline has not reported it yet."""

    time: float
    sent: int
    read: int | None
    watermark: float | None


def draw(
    path: str,
    windows: Mapping[tuple[int, str], Sequence[float]],
    cities: Sequence[str],
    window_seconds: int,
    samples: Sequence[Sample],
) -> None:
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 7), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    figure.suptitle("Orders along the Danube: topic → Spark → Delta", fontsize=14, fontweight="bold")
    _bars(above, windows, cities, window_seconds)
    _lines(below, samples)
    below.xaxis.set_major_locator(dates.AutoDateLocator(minticks=4, maxticks=9))
    below.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S", tz=UTC))
    for axes in (above, below):
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(
    axes: plt.Axes, windows: Mapping[tuple[int, str], Sequence[float]], cities: Sequence[str], seconds: int
) -> None:
    starts = sorted({start for start, _ in windows})
    places = [dates.date2num(_time(start)) for start in starts]
    floor = [0.0] * len(starts)
    for city, color in zip(cities, COLORS, strict=True):
        revenue = [windows.get((start, city), (0, 0.0))[1] for start in starts]
        axes.bar(places, revenue, width=seconds * 0.92 / 86_400, bottom=floor, align="edge", color=color, label=city)
        floor = [below + more for below, more in zip(floor, revenue, strict=True)]
    axes.set_title(
        f"Revenue in windows of {seconds} s of event time, as the Delta table has it", loc="left", fontsize=11
    )
    axes.set_ylabel("revenue per window (€)")
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.set_ylim(0, max(floor, default=1.0) * 1.18 or 1.0)
    axes.legend(ncols=len(cities), loc="upper left", frameon=False)


def _lines(axes: plt.Axes, samples: Sequence[Sample]) -> None:
    axes.step(
        [_time(each.time) for each in samples], [each.sent for each in samples], color="#333333", label="published"
    )
    known = [each for each in samples if each.read is not None]
    axes.step(
        [_time(each.time) for each in known],
        [each.read for each in known],
        color="#d1495b",
        label="read by the pipeline, as it reports every 2 s",
    )
    axes.set_title("Orders since the start", loc="left", fontsize=11)
    axes.set_ylabel("orders")
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time (UTC)")
    axes.legend(loc="best", frameon=False)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
