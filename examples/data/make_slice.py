#!/usr/bin/env python3
"""Cuts the slice of this folder out of the full files.

make_slice.py --weka weka_agentic_requests.csv.gz --azure AzureLLMInferenceTrace_code.csv \
              --selections FOLDER_OF_smollm2_8k_* [--out FOLDER]

Whole sessions are kept (every k-th of the file, so that lengths keep their distribution), lines are kept as they are, and of the
selections every step and rank of half the layers. The output depends on nothing but the input files.
"""

import argparse
import gzip
import json
import pathlib

SESSIONS = 128
MINUTES = 30
LAYERS = {"smollm2_8k_code": (2, 10, 18, 26), "smollm2_8k_docs": (6, 14, 22, 29)}


def weka(path: pathlib.Path, out: pathlib.Path) -> None:
    with gzip.open(path, "rt", newline="") as f:
        header, *lines = f.read().splitlines()
    names = list(dict.fromkeys(line.split(",", 1)[0] for line in lines))
    kept = set(names[:: max(1, len(names) // SESSIONS)][:SESSIONS])
    text = "\n".join([header, *(line for line in lines if line.split(",", 1)[0] in kept)]) + "\n"
    with open(out / "weka_sessions.csv.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as f:
        f.write(text.encode())


def azure(path: pathlib.Path, out: pathlib.Path) -> None:
    header, *lines = path.read_text().splitlines()

    def minute(line: str) -> int:
        hours, minutes, _ = line.split(",", 1)[0].split(" ")[1].split(":")
        return int(hours) * 60 + int(minutes)

    first = minute(lines[0])
    kept = [line for line in lines if minute(line) - first < MINUTES]
    (out / "azure_code.csv").write_text("\n".join([header, *kept]) + "\n")


def selections(folder: pathlib.Path, out: pathlib.Path) -> None:
    for name, layers in LAYERS.items():
        shape = json.loads((folder / f"{name}.json").read_text())
        data = (folder / f"{name}.u16").read_bytes()
        one = shape["steps"] * shape["k"] * 2
        at = [shape["layers"].index(layer) for layer in layers]
        (out / f"{name}.u16").write_bytes(b"".join(data[i * one : (i + 1) * one] for i in at))
        shape.pop("pool", None)
        shape["layers"] = list(layers)
        shape["shape"][0] = len(layers)
        (out / f"{name}.json").write_text(json.dumps(shape, indent=1) + "\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weka", type=pathlib.Path, required=True)
    p.add_argument("--azure", type=pathlib.Path, required=True)
    p.add_argument("--selections", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    a = p.parse_args()
    weka(a.weka, a.out)
    azure(a.azure, a.out)
    selections(a.selections, a.out)


if __name__ == "__main__":
    main()
