# How jobs/arm.sh compiles for 64-bit Arm: Debian's cross compiler, and Debian's packages unpacked in build/arm/root.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../build/arm/root" ABSOLUTE)
set(libraries ${root}/usr/lib/aarch64-linux-gnu)
set(CMAKE_SYSROOT ${root})
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig:${root}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})

# The compiler wrappers of Open MPI and HDF5 are for this machine, so both are named.
set(MPI_SKIP_COMPILER_WRAPPER ON)
set(MPI_ASSUME_NO_BUILTIN_MPI ON)
set(MPI_CXX_HEADER_DIR ${libraries}/openmpi/include CACHE PATH "")
set(MPI_CXX_LIB_NAMES mpi CACHE STRING "")
set(MPI_mpi_LIBRARY ${libraries}/openmpi/lib/libmpi.so CACHE FILEPATH "")
set(HDF5_C_COMPILER_EXECUTABLE HDF5_C_COMPILER_EXECUTABLE-NOTFOUND CACHE FILEPATH "")
set(HDF5_ROOT ${libraries}/hdf5/serial CACHE PATH "")
set(HDF5_C_INCLUDE_DIR ${root}/usr/include/hdf5/serial CACHE PATH "")
set(HDF5_hdf5_LIBRARY_RELEASE ${libraries}/hdf5/serial/libhdf5.so CACHE FILEPATH "")
set(HDF5_C_LIBRARY_hdf5 ${libraries}/hdf5/serial/libhdf5.so CACHE FILEPATH "")

# What shared libraries need of each other.
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-Wl,-rpath-link,${libraries}:${root}/lib/aarch64-linux-gnu:${libraries}/openmpi/lib:${libraries}/blis-openmp")
