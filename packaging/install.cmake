# What `cmake --install` and CPack put where. Two components: `runtime` (program, manual page, completion, scripts,
# inputs, documentation) and `development` (the pure parts as a CMake package: plan and simulate from another program).
# Every path is relative: the prefix may be moved.

# Installing takes what is built; it does not first build tests and benchmarks.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

# Manual page and completion, made by the program of its own declarations.
set(manual ${PROJECT_BINARY_DIR}/cleave.1)
set(completion ${PROJECT_BINARY_DIR}/cleave.bash-completion)
add_custom_command(OUTPUT ${manual} ${completion} DEPENDS cleave VERBATIM
  COMMAND cleave describe manual > ${manual}
  COMMAND cleave describe completion > ${completion})
add_custom_target(descriptions ALL DEPENDS ${manual} ${completion})

install(TARGETS cleave RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT runtime)
install(FILES ${completion} RENAME cleave DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  COMPONENT runtime)
install(PROGRAMS jobs/run.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/cleave/jobs COMPONENT runtime)
install(FILES jobs/mpi-env.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/cleave/jobs COMPONENT runtime)
install(DIRECTORY jobs/slurm DESTINATION ${CMAKE_INSTALL_DATADIR}/cleave/jobs COMPONENT runtime)
install(FILES packaging/modulefiles/cleave/0.1.0 DESTINATION ${CMAKE_INSTALL_DATADIR}/modulefiles/cleave
  COMPONENT runtime)
install(DIRECTORY inputs DESTINATION ${CMAKE_INSTALL_DATADIR}/cleave COMPONENT runtime)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

# The pure parts: no MPI, no files, no clock.
set(exported base fleet model timing plan sched)
foreach(component ${exported})
  install(TARGETS cleave_${component} EXPORT cleaveTargets COMPONENT development
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(DIRECTORY include/cleave/${component} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave COMPONENT development)
endforeach()
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/cleave)
install(EXPORT cleaveTargets NAMESPACE cleave:: DESTINATION ${cmake_folder} COMPONENT development)
include(CMakePackageConfigHelpers)
configure_package_config_file(packaging/cleaveConfig.cmake.in ${PROJECT_BINARY_DIR}/cleaveConfig.cmake
  INSTALL_DESTINATION ${cmake_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cleaveConfig.cmake ${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake
  DESTINATION ${cmake_folder} COMPONENT development)

# Debian packages: `cpack -G DEB` in the build folder makes cleave_*.deb and libcleave-dev_*.deb.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cleave)
set(CPACK_PACKAGE_VENDOR "cleave")
set(CPACK_PACKAGE_CONTACT "The cleave authors <cleave@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME cleave)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
# Libraries come from what the program is linked with; mpirun is called by the scripts.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS "openmpi-bin, bash")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libcleave-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS libfmt-dev)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "Trains and simulates language models on a fleet of emulated edge devices")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Planner, cost model and simulator of cleave as C++ libraries")
include(CPack)
