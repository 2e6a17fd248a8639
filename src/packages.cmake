# Finds every package that Cleave builds on; each component names the ones it uses (see src/*/CMakeLists.txt).
find_package(Threads REQUIRED)

set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS CXX)

find_package(HDF5 REQUIRED COMPONENTS C)

find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # yaml-cpp 0.7 names its target without a namespace
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)

find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
# Where the library was built with it, it picks the widest vectors at run time; the sums are the same.
include(CheckCXXSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::XXHASH)
check_cxx_symbol_exists(XXH3_64bits_withSeed_dispatch xxh_x86dispatch.h CLEAVE_XXHASH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)
if(CLEAVE_XXHASH_DISPATCH)
  target_compile_definitions(PkgConfig::XXHASH INTERFACE CLEAVE_XXHASH_DISPATCH)
endif()

# BLIS ships neither a pkg-config file nor a CMake package.
find_path(BLIS_INCLUDE_DIR blis.h
  PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/blis-openmp PATH_SUFFIXES blis-openmp blis REQUIRED)
find_library(BLIS_LIBRARY blis PATH_SUFFIXES blis-openmp REQUIRED)
add_library(blis::blis INTERFACE IMPORTED)
target_include_directories(blis::blis SYSTEM INTERFACE "${BLIS_INCLUDE_DIR}")
target_link_libraries(blis::blis INTERFACE "${BLIS_LIBRARY}" Threads::Threads m)
