# cleave_component(NAME [LINKS component...] [PACKAGES target...] [PRIVATE_PACKAGES target...])
#
# One library per component: the sources of src/NAME/ and its folders behind the headers of include/cleave/NAME/. A
# component with folders spells its own headers from src/NAME/ on ("search/slabs.hpp"). LINKS repeats the component's row
# of the layering table in docs/architecture.md; tests/arch holds the includes to the same table.
function(cleave_component name)
  cmake_parse_arguments(ARG "" "" "LINKS;PACKAGES;PRIVATE_PACKAGES" ${ARGN})
  file(GLOB_RECURSE sources RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "(^|/)main(_[a-z]+)?\\.cpp$")
  set(in_folders ${sources})
  list(FILTER in_folders INCLUDE REGEX "/")
  list(TRANSFORM ARG_LINKS PREPEND cleave::)
  if(sources)
    add_library(cleave_${name} STATIC ${sources})
    target_include_directories(cleave_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
      "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
    if(in_folders)
      target_include_directories(cleave_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    endif()
    target_compile_features(cleave_${name} PUBLIC cxx_std_20)
    target_link_libraries(cleave_${name} PUBLIC ${ARG_LINKS} ${ARG_PACKAGES} PRIVATE ${ARG_PRIVATE_PACKAGES})
    cleave_compile_options(cleave_${name})
  else()
    add_library(cleave_${name} INTERFACE)
    target_include_directories(cleave_${name} INTERFACE ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(cleave_${name} INTERFACE ${ARG_LINKS} ${ARG_PACKAGES})
  endif()
  add_library(cleave::${name} ALIAS cleave_${name})
  set_target_properties(cleave_${name} PROPERTIES EXPORT_NAME ${name})
endfunction()

# Warnings, sanitizers, and the floating-point rules that the same-bits guarantee rests on: the compiler must not
# contract, reorder or assume finite numbers, so that a kernel rounds alike wherever it is inlined.
function(cleave_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    -ffp-contract=off)
  if(CLEAVE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # takes the files of a unity for headers
  endif()
  if(CLEAVE_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${CLEAVE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${CLEAVE_SANITIZE})
  endif()
endfunction()
