#!/usr/bin/env python3
"""check.py ROOT COMPILER [FLAG…]: a stranger's project builds against ebb installed to a prefix, as a subproject, and by plain -I."""
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

root, compiler, *flags = sys.argv[1:]
consume = Path(__file__).resolve().parent
os.environ.update(CXX=compiler, CXXFLAGS=shlex.join(flags))


def run(*command, **env):
    print("+", *command, flush=True)
    subprocess.run(list(map(str, command)), check=True, env=os.environ | env)


def build_and_run(source, build, *options, **env):
    run("meson", "setup", build, source, *options, **env)
    run("meson", "test", "-C", build)


with tempfile.TemporaryDirectory() as folder:
    temp = Path(folder)
    run("meson", "setup", temp / "ebb", root, "--prefix", temp / "prefix", "-Dtests=false")
    run("meson", "install", "-C", temp / "ebb")
    build_and_run(consume, temp / "installed", "--wrap-mode=nofallback", PKG_CONFIG_PATH=str(temp / "prefix/share/pkgconfig"))

    shutil.copytree(consume, temp / "project")
    (temp / "project/subprojects").mkdir()
    (temp / "project/subprojects/ebb").symlink_to(root)
    build_and_run(temp / "project", temp / "project/build", "--force-fallback-for=ebb")

    run(compiler, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *flags, f"-I{root}/include", consume / "main.cpp", "-o",
        temp / "plain", "-pthread")
    run(temp / "plain")
