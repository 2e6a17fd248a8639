# Ways to register a test. Every test has a time limit and the number of processors that it keeps busy.

# What runs in one process, and so under the sanitizers: `--target unit_tests` builds no more than that.
add_custom_target(unit_tests)

# Levels of instructions below this machine's (cleave/base/processor.hpp): with each, other matrix kernels. Tests that touch
# numbers are registered once more for each of them, as NAME.LEVEL, so that every machine tries every set that it can run.
set(CLEAVE_LESSER_LEVELS "")
set(CLEAVE_TOUCHES_NUMBERS "^(kernels\\..*|inprocess\\.(verification|families)|device\\.execute)$")
if(NOT CLEAVE_SANITIZE AND NOT CMAKE_CROSSCOMPILING AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  if(flags MATCHES " avx2 ")
    list(APPEND CLEAVE_LESSER_LEVELS baseline)
  endif()
  if(flags MATCHES " avx512bw ")
    list(APPEND CLEAVE_LESSER_LEVELS avx2)
  endif()
endif()

# For work on a few tests: -DCLEAVE_ONLY_TESTS='^plan[.](tiling_2d|slabs)$' leaves the others out of build and CTest.
set(CLEAVE_ONLY_TESTS "." CACHE STRING "Regular expression of the unit tests to build (default: all)")

# cleave_test_options(TARGET): as the product is compiled, but a test's own code is compiled more often than it runs.
function(cleave_test_options target)
  target_compile_definitions(${target} PRIVATE CLEAVE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  cleave_compile_options(${target})
  if(CMAKE_UNITY_BUILD)
    target_compile_options(${target} PRIVATE -Wno-shadow)  # a local name may be that of another file
  endif()
  if(CLEAVE_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# cleave_unit_tests(GROUP SOURCES file... LINKS library... [INCLUDES folder...] [LABELS label...]):
# one GoogleTest executable without MPI, test_GROUP, from all the files. Each file is a CTest of its own that runs in a
# process of its own: tiling_2d_test.cpp of the group plan is `plan.tiling_2d` (support/main.cpp). In a unity build the
# files are compiled eight at a time: names in their anonymous namespaces differ within a group.
function(cleave_unit_tests group)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;INCLUDES;LABELS" ${ARGN})
  set(target test_${group})
  set(sources "")
  set(stems "")
  foreach(source ${ARG_SOURCES})
    get_filename_component(stem ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" stem ${stem})
    if("${group}.${stem}" MATCHES "${CLEAVE_ONLY_TESTS}")
      list(APPEND sources ${source})
      list(APPEND stems ${stem})
    endif()
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_executable(${target} ${sources})
  add_dependencies(unit_tests ${target})
  target_include_directories(${target} PRIVATE ${ARG_INCLUDES} ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${target} PRIVATE ${ARG_LINKS} cleave_test_main)
  cleave_test_options(${target})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit fast)
  endif()
  set(limit 300)
  if(CLEAVE_SANITIZE)
    set(limit 900)  # sanitizers take many times as long
  endif()
  foreach(stem ${stems})
    set(name ${group}.${stem})
    add_test(NAME ${name} COMMAND ${target} ${stem})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${limit} PROCESSORS 1)
    if(name MATCHES "${CLEAVE_TOUCHES_NUMBERS}")
      foreach(level ${CLEAVE_LESSER_LEVELS})
        add_test(NAME ${name}.${level} COMMAND ${target} ${stem})
        set_tests_properties(${name}.${level} PROPERTIES LABELS unit TIMEOUT 600 PROCESSORS 1
          ENVIRONMENT "CLEAVE_INSTRUCTIONS=${level}")
      endforeach()
    endif()
  endforeach()
endfunction()

# cleave_mpi_test(NAME TARGET RANKS COUNT... [ARGS arg...] [LABELS label...] [TIMEOUT s]):
# runs TARGET under mpirun once for each number of ranks, as NAME.npCOUNT.
function(cleave_mpi_test name target)
  cmake_parse_arguments(ARG "" "TIMEOUT" "RANKS;ARGS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  foreach(ranks ${ARG_RANKS})
    add_test(NAME ${name}.np${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${target}> ${ARG_ARGS})
    set_tests_properties(${name}.np${ranks} PROPERTIES LABELS "mpi;${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none;OMPI_MCA_orte_allowed_exit_without_sync=1")
  endforeach()
endfunction()
