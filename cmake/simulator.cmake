# SPDX-License-Identifier: MIT
# The GPU's tests without a GPU: a libcuda.so.1 that runs the kernels on the CPU, and the kernels
# compiled for it. See docs/simulator.md.
enable_language(CXX)
set(simulator_folder ${PROJECT_BINARY_DIR}/simulator)

file(GLOB simulator_sources CONFIGURE_DEPENDS tests/simulator/*.c)
add_library(simulator SHARED ${simulator_sources})
set_target_properties(simulator PROPERTIES
  OUTPUT_NAME cuda SOVERSION 1 C_VISIBILITY_PRESET default
  LIBRARY_OUTPUT_DIRECTORY ${simulator_folder})
target_include_directories(simulator PRIVATE src)
target_include_directories(simulator SYSTEM PRIVATE ${DEEPGEMM_CUDA_INCLUDE})
target_compile_options(simulator PRIVATE -O3 -Wno-psabi)
target_link_libraries(simulator PRIVATE m dl)

# The kernels include "ptx/..." from beside themselves, so they are copied beside the simulator's.
set(copies ${simulator_folder}/src/cuda/device)
file(GLOB device_sources CONFIGURE_DEPENDS src/cuda/device/*.cu* src/cuda/device/*.h)
file(GLOB core_headers CONFIGURE_DEPENDS src/core/*.h)
file(GLOB simulator_headers CONFIGURE_DEPENDS tests/simulator/device.h tests/simulator/machine.h)
file(GLOB simulator_ptx CONFIGURE_DEPENDS tests/simulator/ptx/*.cuh)
add_custom_command(
  OUTPUT ${simulator_folder}/copied
  COMMAND ${CMAKE_COMMAND} -E make_directory ${copies}/ptx ${simulator_folder}/src/core
  COMMAND ${CMAKE_COMMAND} -E copy_if_different ${device_sources} ${simulator_headers} ${copies}
  COMMAND ${CMAKE_COMMAND} -E copy_if_different ${simulator_ptx} ${copies}/ptx
  COMMAND ${CMAKE_COMMAND} -E copy_if_different ${core_headers} ${simulator_folder}/src/core
  COMMAND ${CMAKE_COMMAND} -E touch ${simulator_folder}/copied
  DEPENDS ${device_sources} ${core_headers} ${simulator_headers} ${simulator_ptx} VERBATIM)

# FP32 as it is written, so that kernels which must agree to the last bit do here as well.
set(compile_simulated ${CMAKE_CXX_COMPILER} -x c++ -std=gnu++17 -O1 -g1 -ffp-contract=off -fPIC
    -shared -fvisibility=hidden -fno-gnu-unique -fno-strict-aliasing -w -Wno-psabi
    -isystem ${DEEPGEMM_CUDA_INCLUDE} -include ${copies}/device.h)
foreach(kernel ${kernels})
  set(object ${simulator_folder}/${kernel}.so)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${compile_simulated} ${definitions_${kernel}} ${copies}/${source_${kernel}} -o ${object}
            -x none $<TARGET_FILE:simulator>
    DEPENDS ${simulator_folder}/copied simulator
    COMMENT "simulated ${kernel}" VERBATIM)
  list(APPEND simulated_kernels ${object})
endforeach()
add_custom_target(simulated_kernels ALL DEPENDS ${simulated_kernels})
