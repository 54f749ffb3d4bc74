# SPDX-License-Identifier: MIT
# The fuzz targets: each tests/fuzz/fuzz_*.c is a program that takes a folder of seeds and
# -max_total_time=SECONDS. With clang they are libFuzzer programs; any other compiler gets a small
# driver that mutates the seeds without looking at coverage. Configure with
# -DDEEPGEMM_SANITIZE=address,undefined as well.
set(fuzz_driver)
if(CMAKE_C_COMPILER_ID MATCHES Clang)
  target_compile_options(deepgemm_objects PRIVATE -fsanitize=fuzzer-no-link)
else()
  set(fuzz_driver tests/fuzz/driver.c)
endif()

file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${fuzz_driver})
  target_include_directories(${name} PRIVATE src)
  target_link_libraries(${name} PRIVATE deepgemm_static OpenMP::OpenMP_C PkgConfig::CJSON m dl)
  if(NOT fuzz_driver)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endif()
endforeach()
