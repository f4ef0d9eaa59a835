#!/usr/bin/env python3
"""Plots what the replay wrote: report.py REPLAY.json REPORT.html

One self-contained page: the table, and for each policy residency (frames by state) and load (requests in flight and waiting, share of
rows fetched from the host) over time.
"""

import html
import io
import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

STATES = (("required", "#33658a"), ("lent", "#86bbd8"), ("moving", "#f6ae2d"), ("free", "#eceff1"))
LINES = (
    ("requests finished", lambda p: f"{p['requests_finished']:,}"),
    ("requests that never fit", lambda p: f"{p['requests_refused']:,}"),
    ("calls finished", lambda p: f"{p['calls_finished']:,}"),
    ("in flight, median", lambda p: f"{p['in_flight_median']:.0f}"),
    ("in flight, peak", lambda p: f"{p['in_flight_peak']:,}"),
    ("admission waits", lambda p: f"{p['admission_waits']:,}"),
    ("wait for room, p99", lambda p: f"{p['wait_p99']:.1f} s"),
    ("time until all ended", lambda p: f"{p['seconds']:.1f} s"),
    ("step, p50", lambda p: f"{p['step_p50'] * 1e3:.2f} ms"),
    ("step, p99", lambda p: f"{p['step_p99'] * 1e3:.2f} ms"),
    ("fetched from the host", lambda p: f"{p['fetched_share']:.2%}"),
    ("rows fetched", lambda p: f"{p['rows_fetched']:,}"),
    ("bytes fetched", lambda p: f"{p['bytes_fetched']:,}"),
    ("pages lent", lambda p: f"{p['pages_lent']:,}"),
    ("pages revoked", lambda p: f"{p['pages_revoked']:,}"),
    ("pages refilled", lambda p: f"{p['pages_refilled']:,}"),
    ("pages backed up", lambda p: f"{p['pages_backed_up']:,}"),
    ("rows checked", lambda p: f"{p['rows_checked']:,}"),
    ("rows wrong", lambda p: f"{p['rows_wrong']:,}"),
)


def plot(policies: list[dict]) -> str:
    """All policies that played something, below each other on one time axis, as SVG."""
    end = max(p["series"]["time"][-1] for p in policies)
    load = max(max(map(sum, zip(p["series"]["in_flight"], p["series"]["waiting"]))) for p in policies)
    figure, axes = plt.subplots(len(policies), 2, figsize=(13, 2.6 * len(policies)), sharex=True, squeeze=False, layout="constrained")
    for (frames, requests), p in zip(axes, policies):
        s = p["series"]
        frames.stackplot(s["time"], *(s[name] for name, _ in STATES), colors=[c for _, c in STATES], labels=[n for n, _ in STATES], step="post")
        frames.set_title(f"{p['policy']}: frames", loc="left", fontsize=10)
        frames.set_ylim(0, sum(s[name][0] for name, _ in STATES))
        requests.step(s["time"], s["in_flight"], where="post", color="#2f4858", label="in flight")
        requests.step(s["time"], s["waiting"], where="post", color="#f26419", label="waiting", linewidth=1)
        requests.set_ylim(0, load * 1.05)
        requests.set_title(f"{p['policy']}: load", loc="left", fontsize=10)
        share = requests.twinx()
        share.step(s["time"], [100 * x for x in s["fetched_share"]], where="post", color="#86bbd8", label="fetched, %", linewidth=1)
        share.set_ylim(0, 100 * max(0.01, max(max(q["series"]["fetched_share"]) for q in policies)) * 1.05)
        share.set_ylabel("%", fontsize=8)
        frames.set_xlim(0, end)
        if p is policies[0]:
            above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "fontsize": 8, "frameon": False}
            frames.legend(ncol=len(STATES), **above)
            lines = requests.get_lines() + share.get_lines()
            requests.legend(lines, [line.get_label() for line in lines], ncol=3, **above)
    for axis in axes[-1]:
        axis.set_xlabel("seconds on the replay's clock")
    out = io.StringIO()
    figure.savefig(out, format="svg")
    plt.close(figure)
    return out.getvalue()[out.getvalue().index("<svg") :]


def table(policies: list[dict]) -> str:
    head = "".join(f"<th>{html.escape(p['policy'])}</th>" for p in policies)
    body = "".join(f"<tr><td>{title}</td>{''.join(f'<td>{value(p)}</td>' for p in policies)}</tr>" for title, value in LINES)
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


def main() -> None:
    source, target = sys.argv[1:3]
    with open(source) as f:
        data = json.load(f)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in data["notes"])
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ebb: replay</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1.5em 0 }}
td, th {{ padding: 2px 14px; text-align: right; border-bottom: 1px solid #ddd }} td:first-child {{ text-align: left }}
p {{ margin: .3em 0 }} svg {{ width: 100%; height: auto }}
</style></head><body><h1>Real sessions in one small pool, policy by policy</h1>
{notes}{table(data["policies"])}{plot([p for p in data["policies"] if p["series"]["time"]])}</body></html>
"""
    with open(target, "w") as f:
        f.write(page)


if __name__ == "__main__":
    main()
