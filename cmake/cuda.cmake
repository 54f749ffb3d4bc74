# SPDX-License-Identifier: MIT
# The CUDA backend: its C sources, and one cubin for each row of the kernel table. Sets cuda_sources
# and DEEPGEMM_CUDA_INCLUDE; without nvcc cuda_sources stays empty.
find_program(DEEPGEMM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
             PATH_SUFFIXES bin)
if(NOT DEEPGEMM_NVCC)
  message(STATUS "nvcc was not found: this build is for the CPU only")
  return()
endif()
get_filename_component(nvcc_folder ${DEEPGEMM_NVCC} REALPATH)
get_filename_component(nvcc_folder ${nvcc_folder} DIRECTORY)
find_path(DEEPGEMM_CUDA_INCLUDE cuda.h HINTS ${nvcc_folder}/../include REQUIRED)

set(shared_headers copy_rules grouped_schedule host_device packed_sm90 swizzle tile_order) # of src/core, compiled by nvcc too
file(GLOB_RECURSE device_headers CONFIGURE_DEPENDS src/cuda/device/*.h src/cuda/device/*.cuh)
set(core ${PROJECT_SOURCE_DIR}/src/core)
list(TRANSFORM shared_headers REPLACE "(.+)" "${core}/\\1.h")
set(DEEPGEMM_CUBINS "" CACHE PATH "Another build's cubins of this source, not to compile them again")
set(cubin_folder ${DEEPGEMM_CUBINS})
if(NOT DEEPGEMM_CUBINS)
  set(cubin_folder ${PROJECT_BINARY_DIR}/cubins)
  file(MAKE_DIRECTORY ${cubin_folder})
endif()
# A kernel that spills registers or uses local memory does not build.
set(compile_cubin ${DEEPGEMM_NVCC} -cubin -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a
    -Xptxas -warn-spills,-warn-lmem-usage,-Werror)

# What is compiled: a cubin for each name in `kernels`, from source_NAME with definitions_NAME.
# This adds `source` for each row of a kernel table; `columns` names the macros that the row's values
# become.
function(add_table table macro source columns)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(STRINGS ${table} rows REGEX "^${macro}\\(")
  foreach(row ${rows})
    string(REGEX REPLACE "^${macro}\\((.*)\\).*$" "\\1" values "${row}")
    string(REGEX REPLACE ", *" ";" values "${values}")
    set(definitions "")
    foreach(column value IN ZIP_LISTS columns values)
      if(column MATCHES "^[AB]_TYPE$")
        string(TOLOWER ${value} value)
        list(APPEND definitions "-DDGI_${column}=\"${value}\"")
      elseif(column)
        list(APPEND definitions "-DDGI_${column}=${value}")
      endif()
    endforeach()
    list(GET values 0 kernel)
    list(APPEND kernels ${kernel})
    set(source_${kernel} ${source} PARENT_SCOPE)
    set(definitions_${kernel} ${definitions} PARENT_SCOPE)
  endforeach()
  set(kernels ${kernels} PARENT_SCOPE)
endfunction()

set(columns "KERNEL;A_TYPE;B_TYPE;TILE_M;TILE_N;GROUPS;CLUSTER;STAGES;PROMOTE_K;SPAN;ROWS")
add_table(${core}/kernels_sm90.def DGI_SM90 gemm_dense.cu "${columns}")
add_table(${core}/kernels_sm90_grouped.def DGI_SM90 gemm_grouped.cu "${columns}")
if(DEEPGEMM_SWEEP)
  set(sweep ${PROJECT_BINARY_DIR}/sweep/kernels_sm90_sweep.def)
  file(STRINGS ${core}/kernels_sm90.def rows REGEX "^DGI_SM90\\(.*, E4M3, E4M3,")
  set(deeper "")
  foreach(row ${rows})
    string(REGEX MATCH "^(.*)(__sm90a, E4M3, E4M3, [0-9]+, [0-9]+, [0-9]+, [0-9]+, )([0-9]+)(,.*)$" row "${row}")
    foreach(stages RANGE 2 ${CMAKE_MATCH_3})
      string(APPEND deeper "${CMAKE_MATCH_1}_s${stages}${CMAKE_MATCH_2}${stages}${CMAKE_MATCH_4}\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${sweep} CONTENT "${deeper}")
  add_table(${sweep} DGI_SM90 gemm_dense.cu "${columns}")
endif()
# The weights, B, are the first operand of wgmma there.
add_table(${core}/kernels_sm90_decode.def DGI_SM90_DECODE gemm_decode.cu
  "KERNEL;B_TYPE;A_TYPE;TOKENS;STAGES;SCALE_K")
add_table(${core}/kernels_sm90_grouped_few.def DGI_SM90_DECODE gemm_grouped_few.cu
  "KERNEL;B_TYPE;A_TYPE;TOKENS;STAGES;SCALE_K")

# The small kernels: some in each other .cu file.
file(GLOB small_kernels CONFIGURE_DEPENDS src/cuda/device/*.cu)
list(FILTER small_kernels EXCLUDE REGEX "gemm_")
foreach(source ${small_kernels})
  get_filename_component(kernel ${source} NAME_WE)
  list(APPEND kernels ${kernel})
  set(source_${kernel} ${kernel}.cu)
endforeach()

foreach(kernel ${kernels})
  set(cubin ${cubin_folder}/${kernel}.cubin)
  set(source ${PROJECT_SOURCE_DIR}/src/cuda/device/${source_${kernel}})
  if(NOT DEEPGEMM_CUBINS)
    add_custom_command(
      OUTPUT ${cubin}
      COMMAND ${compile_cubin} ${definitions_${kernel}} ${source} -o ${cubin}
      DEPENDS ${source} ${device_headers} ${shared_headers}
      COMMENT "nvcc ${kernel}" VERBATIM)
  endif()
  list(APPEND cubins ${cubin})
endforeach()

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.c)
set_source_files_properties(src/cuda/modules.c PROPERTIES OBJECT_DEPENDS "${cubins}"
                            COMPILE_DEFINITIONS "DGI_CUBIN_DIR=\"${cubin_folder}\"")

# The GPU side of the tool's benchmark. It sees only the public header of this library, and opens the
# driver and cuBLASLt at run time.
find_path(DEEPGEMM_CUBLASLT_INCLUDE cublasLt.h HINTS ${nvcc_folder}/../include)
function(add_cuda_benchmark target)
  if(NOT DEEPGEMM_CUBLASLT_INCLUDE)
    message(STATUS "cublasLt.h was not found: deepgemm bench is for the CPU only")
    return()
  endif()
  file(GLOB bench_sources CONFIGURE_DEPENDS bench/gpu/*.c)
  target_sources(${target} PRIVATE ${bench_sources})
  target_compile_definitions(${target} PRIVATE BENCH_GPU)
  target_include_directories(${target} SYSTEM PRIVATE ${DEEPGEMM_CUDA_INCLUDE}
                                                      ${DEEPGEMM_CUBLASLT_INCLUDE})
endfunction()
