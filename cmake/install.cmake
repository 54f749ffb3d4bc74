# SPDX-License-Identifier: MIT
# What `cmake --install` puts where: the library, its header, a pkg-config file, a CMake package
# (target deepgemm::deepgemm, the shared library) and the tool.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deepgemm)
set_target_properties(deepgemm_shared PROPERTIES EXPORT_NAME deepgemm)
install(TARGETS deepgemm_shared EXPORT deepgemmTargets)
install(TARGETS deepgemm_static)
install(EXPORT deepgemmTargets NAMESPACE deepgemm:: DESTINATION ${package_dir}
        FILE deepgemmConfig.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/deepgemmConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/deepgemmConfigVersion.cmake DESTINATION ${package_dir})

install(FILES include/deepgemm.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
configure_file(cmake/deepgemm.pc.in deepgemm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/deepgemm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET deepgemm_tool)
  set_target_properties(deepgemm_tool PROPERTIES INSTALL_RPATH
                        "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS deepgemm_tool)
endif()
