#!/usr/bin/env python3
"""The Spack recipe against the build that it describes, with stand-ins for Spack's directives (there is no Spack here).

    python3 tests/package/spack_recipe.py

It must run as Python, depend on every package that src/packages.cmake looks for, and set only options that the build
declares. Whether Spack finds a set of versions is for `spack spec cleave`.
"""
import pathlib
import re
import sys
import types

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
RECIPE = TOP / "packaging/spack/packages/cleave/package.py"
# What the build calls a package, and what Spack does.
NAMES = {"MPI": "mpi", "HDF5": "hdf5", "CLI11": "cli11", "nlohmann_json": "nlohmann-json", "XXHASH": "xxhash",
         "PkgConfig": "pkgconfig", "GTest": "googletest"}
SYSTEM = {"Threads", "Python3"}


class Prefix(str):
    def __getattr__(self, name):
        return Prefix(f"{self}/{name}")


class Recorder:
    """Stands for spack.package: directives note their first argument, the base class gives prefix and spec."""

    def __init__(self):
        self.seen = {}

    def directive(self, name):
        return lambda *args, **kwargs: self.seen.setdefault(name, []).append(args[0])

    def module(self):
        module = types.ModuleType("spack.package")
        for name in ("license", "version", "variant", "depends_on", "generator", "conflicts", "maintainers"):
            setattr(module, name, self.directive(name))

        class CMakePackage:
            prefix = Prefix("/prefix")
            spec = {"blis": types.SimpleNamespace(prefix=Prefix("/blis"), libs=["/blis/lib/libblis.so"])}

            def define(self, name, value):
                return f"-D{name}={value}"

            define_from_variant = define

        module.CMakePackage = CMakePackage
        module.__all__ = [name for name in vars(module) if not name.startswith("_")]
        return module


def main():
    recorder = Recorder()
    sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), recorder.module()
    recipe = {}
    exec(compile(RECIPE.read_text(), str(RECIPE), "exec"), recipe)
    faults = []

    needed = set()
    for file in ("src/packages.cmake", "tests/CMakeLists.txt"):
        text = (TOP / file).read_text()
        needed |= set(re.findall(r"find_package\((\S+?)[ )]", text)) | set(re.findall(r"pkg_check_modules\((\S+)", text))
    needed = {NAMES.get(name, name) for name in needed - SYSTEM} | {"blis"}
    named = {re.match(r"[\w-]+", spec).group() for spec in recorder.seen["depends_on"]}
    faults += [f"the build needs {name}, the recipe does not name it" for name in sorted(needed - named)]

    declared = "\n".join((TOP / f).read_text() for f in ("CMakeLists.txt", "src/packages.cmake")) + "BUILD_TESTING"
    for argument in recipe["Cleave"]().cmake_args():
        option = re.match(r"-D(\w+)=", argument).group(1)
        if not re.search(rf"\b{option}\b", declared):
            faults.append(f"the recipe sets {option}, which the build does not know")
    least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)", declared).group(1)
    if f"cmake@{least}:" not in recorder.seen["depends_on"]:
        faults.append(f"the build needs CMake {least}, the recipe another")
    print("\n".join(faults) or f"{len(named)} dependencies, among them the build's {len(needed)}")
    return 1 if faults else 0


sys.exit(main())
