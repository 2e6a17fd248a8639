# Spack recipe of cleave.
#
#   spack repo add packaging/spack
#   spack install cleave            # or `spack dev-build cleave@main` in a checkout
#
# MPI may be any that Spack has; surviving the death of a device rank was tried with Open MPI 4.1 only.
from spack.package import *


class Cleave(CMakePackage):
    """Trains transformer language models on a fleet of weak, unlike, unreliable edge devices."""

    homepage = "https://example.org/cleave"
    # Edit: where your copy of the repository lies.
    git = "file:///path/to/cleave"

    license("MIT")

    version("main", branch="main")

    variant("tests", default=False, description="Build the tests")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    # The same bits rest on BLIS's expert interface (kernels/gemm): no other BLAS will do.
    depends_on("blis@0.9: threads=openmp")
    depends_on("hdf5@1.10: ~mpi")
    depends_on("yaml-cpp@0.7:")
    depends_on("cli11@2.1:")
    depends_on("fmt@8:")
    # With a fmt of its own, spdlog's headers and ours would be of two versions in one program.
    depends_on("spdlog@1.9: +shared +fmt_external")
    depends_on("nlohmann-json@3.10:")
    depends_on("xxhash@0.8:")
    depends_on("googletest@1.11: +gmock", type="build", when="+tests")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define_from_variant("BUILD_TESTING", "tests"),
            self.define("CLEAVE_BENCHMARKS", False),
            self.define("BLIS_INCLUDE_DIR", self.spec["blis"].prefix.include.blis),
            self.define("BLIS_LIBRARY", self.spec["blis"].libs[0]),
        ]

    def setup_run_environment(self, env):
        env.set("CLEAVE_JOBS", self.prefix.share.cleave.jobs)
