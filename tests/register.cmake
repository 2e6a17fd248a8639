# Ways to register a test. Every test has a time limit and the number of processors that it keeps busy.

# What runs in one process, and so under the sanitizers: `--target unit_tests` builds no more than that.
add_custom_target(unit_tests)

# Levels of instructions below this machine's (cleave/base/processor.hpp): with each, other matrix kernels. Tests that touch
# numbers are registered once more for each of them, as NAME.LEVEL, so that every machine tries every set that it can run.
set(CLEAVE_LESSER_LEVELS "")
set(CLEAVE_TOUCHES_NUMBERS "^(kernels\\..*|inprocess\\.(verification|families)|device\\.execute)$")
if(NOT CLEAVE_SANITIZE AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  if(flags MATCHES " avx2 ")
    list(APPEND CLEAVE_LESSER_LEVELS baseline)
  endif()
  if(flags MATCHES " avx512bw ")
    list(APPEND CLEAVE_LESSER_LEVELS avx2)
  endif()
endif()

# cleave_unit_test(NAME SOURCE LIBRARY...): one GoogleTest executable without MPI, labels unit and fast.
function(cleave_unit_test name source)
  string(REPLACE "." "_" target test_${name})
  add_executable(${target} ${source})
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)  # of one file
  add_dependencies(unit_tests ${target})
  target_link_libraries(${target} PRIVATE ${ARGN} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE CLEAVE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  cleave_compile_options(${target})
  add_test(NAME ${name} COMMAND ${target})
  set(limit 120)
  if(CLEAVE_SANITIZE)
    set(limit 900)  # sanitizers take many times as long
    target_compile_options(${target} PRIVATE -O0)  # a test's own code is compiled more often than it runs
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "unit;fast" TIMEOUT ${limit} PROCESSORS 1)
  if(name MATCHES "${CLEAVE_TOUCHES_NUMBERS}")
    foreach(level ${CLEAVE_LESSER_LEVELS})
      add_test(NAME ${name}.${level} COMMAND ${target})
      set_tests_properties(${name}.${level} PROPERTIES LABELS unit TIMEOUT 600 PROCESSORS 1
        ENVIRONMENT "CLEAVE_INSTRUCTIONS=${level}")
    endforeach()
  endif()
endfunction()

# cleave_mpi_test(NAME TARGET RANKS COUNT... [ARGS arg...] [LABELS label...] [TIMEOUT s]):
# runs TARGET under mpirun once for each number of ranks, as NAME.npCOUNT.
function(cleave_mpi_test name target)
  cmake_parse_arguments(ARG "" "TIMEOUT" "RANKS;ARGS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  foreach(ranks ${ARG_RANKS})
    add_test(NAME ${name}.np${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${target}> ${ARG_ARGS})
    set_tests_properties(${name}.np${ranks} PROPERTIES LABELS "mpi;${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none")
  endforeach()
endfunction()
