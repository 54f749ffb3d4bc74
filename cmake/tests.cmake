# SPDX-License-Identifier: MIT
# The tests. Each tests/*/test_*.c is a program, linked with tests/support/; each
# tests/structure/*.sh is a script, called with the source and the build folder. A test's label is
# its folder.
enable_testing()
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

# Tests may look inside the library, so they link the static one and see src/.
file(GLOB support_sources CONFIGURE_DEPENDS tests/support/*.c)
add_library(test_support STATIC ${support_sources})
target_include_directories(test_support PUBLIC src tests/support)
target_link_libraries(test_support PUBLIC deepgemm_static OpenMP::OpenMP_C PkgConfig::CJSON
                                          PkgConfig::CMOCKA m dl)
target_compile_definitions(test_support
  PUBLIC TEST_CASES="${PROJECT_SOURCE_DIR}/tests/cases"
  PRIVATE TEST_GOLDEN="${PROJECT_SOURCE_DIR}/tests/cli/golden")

file(GLOB test_sources CONFIGURE_DEPENDS tests/unit/test_*.c tests/kernel/test_*.c
     tests/api/test_*.c tests/io/test_*.c tests/cli/test_*.c
     tests/cuda/test_*.c)
if(NOT cuda_sources) # what they test is not there
  list(FILTER test_sources EXCLUDE REGEX "test_driver(s|_calls).c$")
endif()
# Waiting is passive because tests run side by side. ThreadSanitizer is told that only code of this
# project counts, and that a child of fork() may use threads.
set(test_environment
  "DEEPGEMM_TOOL=$<$<TARGET_EXISTS:deepgemm_tool>:$<TARGET_FILE:deepgemm_tool>>"
  OMP_WAIT_POLICY=passive
  TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0)
foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(folder ${folder} NAME)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE test_support)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${folder} TIMEOUT 600
                       ENVIRONMENT "${test_environment}")
  if(TARGET simulator AND folder MATCHES "^(kernel|api|cuda)$")
    add_test(NAME ${name}_simulated COMMAND ${name} --device cuda:0)
    set_tests_properties(${name}_simulated PROPERTIES LABELS simulated TIMEOUT 600 ENVIRONMENT
      "${test_environment};DEEPGEMM_REDUCED=1;LD_LIBRARY_PATH=${simulator_folder}")
  endif()
endforeach()

# This test lets the library's allocations fail.
target_link_options(test_out_of_memory PRIVATE
  LINKER:--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc)

# A peer of the benchmark that a test opens at run time.
add_library(fake_openblas MODULE tests/cli/fake_openblas.c)
set_target_properties(fake_openblas PROPERTIES C_VISIBILITY_PRESET default)
target_compile_definitions(test_bench PRIVATE FAKE_OPENBLAS="$<TARGET_FILE:fake_openblas>")
add_dependencies(test_bench fake_openblas)

# Drivers that a test loads under the real one's name, and one inside a test.
if(cuda_sources)
  target_sources(test_driver_calls PRIVATE tests/cuda/counting_driver.c)
  target_include_directories(test_driver_calls SYSTEM PRIVATE ${DEEPGEMM_CUDA_INCLUDE})
  add_library(fake_driver MODULE tests/cuda/fake_driver.c tests/cuda/fake_driver_rest.c)
  add_library(fake_old_driver MODULE tests/cuda/fake_driver.c)
  foreach(fake fake_driver fake_old_driver)
    set_target_properties(${fake} PROPERTIES C_VISIBILITY_PRESET default)
    target_include_directories(${fake} PRIVATE include src SYSTEM ${DEEPGEMM_CUDA_INCLUDE})
    target_link_options(${fake} PRIVATE LINKER:-soname,libcuda.so.1)
    add_dependencies(test_drivers ${fake})
  endforeach()
  target_compile_definitions(test_drivers PRIVATE FAKE_DRIVER="$<TARGET_FILE:fake_driver>"
                             FAKE_OLD_DRIVER="$<TARGET_FILE:fake_old_driver>")
endif()

# Structure says nothing new under a sanitizer, and its libraries are not for installing.
if(NOT DEEPGEMM_SANITIZE)
  file(GLOB structure_tests CONFIGURE_DEPENDS tests/structure/*.sh)
  foreach(script ${structure_tests})
    get_filename_component(name ${script} NAME_WE)
    add_test(NAME structure_${name}
             COMMAND sh ${script} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
    set_tests_properties(structure_${name} PROPERTIES LABELS structure TIMEOUT 600
                         SKIP_RETURN_CODE 77)
  endforeach()
endif()

# The examples are run as they are.
if(DEEPGEMM_EXAMPLES)
  foreach(name ${example_names})
    add_test(NAME example_${name} COMMAND example_${name})
    set_tests_properties(example_${name} PROPERTIES LABELS example TIMEOUT 60)
  endforeach()
endif()
