#!/usr/bin/env python3
"""reject.py COMPILE_COMMANDS LIKE SOURCE: passes when SOURCE, compiled as the unit whose name ends in LIKE, fails with an error that
says the sentence in SOURCE's first line, `// expect: SENTENCE`."""
import json
import shlex
import subprocess
import sys

commands, like, source = sys.argv[1:]
with open(source) as text:
    wanted = text.readline().split("// expect: ")[1].strip()
with open(commands) as text:
    unit = next(unit for unit in json.load(text) if unit["file"].endswith(like))
command = shlex.split(unit["command"])
compiler = [word for word in command[: command.index(next(w for w in command if w.startswith("-")))] if "ccache" not in word]
flags = [word for word in command if word.startswith(("-I", "-isystem", "-D", "-std", "-W", "-f", "-pthread"))]
run = subprocess.run([*compiler, *flags, "-fsyntax-only", source], cwd=unit["directory"], capture_output=True, text=True)
if run.returncode == 0:
    sys.exit("it compiles")
if not any("error" in line and wanted in line for line in run.stderr.splitlines()):
    sys.exit(f"no error says: {wanted}\n{run.stderr[-4000:]}")
