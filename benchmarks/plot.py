#!/usr/bin/env python3
"""Pictures of resolver_h200.json: ratio to the reference as heat maps, bandwidth against bytes, time against history.

    benchmarks/plot.py [docs/benchmarks/resolver_h200.json] [--out DIR]
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

root = pathlib.Path(__file__).resolve().parent.parent
ink, grid = "#222222", "#dddddd"
colours = ["#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774"]


def plain(axes):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=grid, linewidth=0.6)
    axes.set_axisbelow(True)


def ratios(cells, out):
    """One heat map for each top-k and hot size: how many times faster than the reference, with both times."""
    centre = [c for c in cells if c["axis"] == "centre" and not c["swept"] and c["reference_us"]]
    panels = sorted({(c["top_k"], c["hot"]) for c in centre})
    if not panels:
        return
    batches, misses = sorted({c["batch"] for c in centre}), sorted({c["miss"] for c in centre})
    figure, axes = plt.subplots(1, len(panels), figsize=(4.1 * len(panels), 3.6), squeeze=False, layout="constrained")
    norm = matplotlib.colors.TwoSlopeNorm(vcenter=1, vmin=0.5, vmax=max(4, max(c["reference_us"] / c["us"] for c in centre)))
    for axis, (top_k, hot) in zip(axes[0], panels):
        table = [[float("nan")] * len(batches) for _ in misses]
        for c in centre:
            if (c["top_k"], c["hot"]) != (top_k, hot):
                continue
            y, x = misses.index(c["miss"]), batches.index(c["batch"])
            table[y][x] = c["reference_us"] / c["us"]
            axis.text(x, y, f"{table[y][x]:.2f}×\n{c['us']:.3g} µs", ha="center", va="center", fontsize=7.5, color=ink)
        shown = axis.imshow(table, cmap="RdYlGn", norm=norm, aspect="auto", alpha=0.65)
        axis.set_xticks(range(len(batches)), batches)
        axis.set_yticks(range(len(misses)), [f"{100 * m:g} %" for m in misses])
        axis.set_xlabel("requests in the batch")
        axis.set_title(f"top-k {top_k}, hot {hot}", fontsize=10)
    axes[0][0].set_ylabel("selected rows that are missing")
    figure.colorbar(shown, ax=axes, label="times faster than the reference")
    figure.savefig(out / "resolver_ratio.png", dpi=150)
    plt.close(figure)


def bandwidth(cells, ceilings, out):
    """Payload rate of every cell that fetches, its reference and its floor."""
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    moving = [c for c in cells if c["bytes"] > 0 and not c["resident"]]
    for label, key, colour, marker in (("reference", "reference_us", colours[5], "x"), ("best gather, addresses given", "floor_us", colours[1], "_"), ("resolver", "us", colours[0], "o")):
        for memory, alpha in (("managed", 1.0), ("pinned", 0.35)):
            of = [c for c in moving if c["memory"] == memory and c[key]]
            axes.scatter([c["bytes"] for c in of], [c["bytes"] / c[key] / 1e3 for c in of], s=16, marker=marker, color=colour,
                         alpha=alpha, linewidths=1, label=f"{label}, {memory}" if of else None)
    for memory, figures in ceilings.items():
        best = max((figures[k].get("graph_gbs") or 0) for k in ("contiguous_dma", "contiguous_gather") if k in figures)
        if best:
            axes.axhline(best, color=ink, linewidth=0.8, linestyle="--" if memory == "managed" else ":")
            axes.text(1.0, best, f" contiguous, {memory} ", fontsize=7.5, va="bottom", ha="right", color=ink, transform=axes.get_yaxis_transform())
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes that one resolve fetches")
    axes.set_ylabel("GB/s, lookups included")
    plain(axes)
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    figure.savefig(out / "resolver_bandwidth.png", dpi=150)
    plt.close(figure)


def history(cells, out):
    """Time against the length of the history: flat is the aim."""
    of = [c for c in cells if c["axis"] == "history" and not c["swept"]]
    lines = sorted({(c["batch"], c["miss"]) for c in of})
    lines = [l for l in lines if len([c for c in of if (c["batch"], c["miss"]) == l]) > 1]
    if not lines:
        return
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    for colour, (batch, miss) in zip(colours, lines):
        points = sorted((c["history"], c["us"], c["reference_us"]) for c in of if (c["batch"], c["miss"]) == (batch, miss))
        axes.plot([p[0] for p in points], [p[1] for p in points], "o-", color=colour, markersize=4, label=f"batch {batch}, {100 * miss:g} % missing")
        known = [p for p in points if p[2]]
        axes.plot([p[0] for p in known], [p[2] for p in known], "x:", color=colour, markersize=4, linewidth=0.9)
    axes.plot([], [], "x:", color=ink, linewidth=0.9, label="the reference")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g} K")
    axes.set_xlabel("rows of a request's history")
    axes.set_ylabel("µs of one resolve")
    plain(axes)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(out / "resolver_history.png", dpi=150)
    plt.close(figure)


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("file", nargs="?", type=pathlib.Path, default=root / "docs" / "benchmarks" / "resolver_h200.json")
    ask.add_argument("--out", type=pathlib.Path)
    o = ask.parse_args()
    out = o.out or o.file.parent
    out.mkdir(parents=True, exist_ok=True)
    document = json.loads(o.file.read_text())
    ratios(document["cells"], out)
    bandwidth(document["cells"], document["ceilings"], out)
    history(document["cells"], out)


if __name__ == "__main__":
    main()
