# SPDX-License-Identifier: MIT
# The Python package's extension: python/src/*.c with the library inside, one file for all CPython
# versions from 3.10 on (the limited API). `pip install .` builds it; see pyproject.toml.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
file(GLOB extension_sources CONFIGURE_DEPENDS python/src/*.c)
Python_add_library(deepgemm_python MODULE ${extension_sources})
target_link_libraries(deepgemm_python PRIVATE deepgemm_static OpenMP::OpenMP_C PkgConfig::CJSON m)
target_compile_definitions(deepgemm_python PRIVATE Py_LIMITED_API=0x030A0000)
# The methods' signatures are those of CPython's tables.
target_compile_options(deepgemm_python PRIVATE -Wno-missing-field-initializers)
set_target_properties(deepgemm_python PROPERTIES OUTPUT_NAME _C PREFIX "" SUFFIX ".abi3.so")
# Nothing of the library inside is offered to other modules of the process.
target_link_options(deepgemm_python PRIVATE -Wl,--exclude-libs,ALL -Wl,-s)
install(TARGETS deepgemm_python LIBRARY DESTINATION deepgemm COMPONENT python)
