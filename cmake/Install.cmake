# SPDX-License-Identifier: Apache-2.0
# Two layouts. A prefix: lib/, include/, lib/cmake/cynosure. A wheel: all of that inside the package folder, the
# library beside the module _core; one file without links, since a wheel would hold each link as a full copy.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(in_wheel)
  set(library_dir .)
  set(config_dir lib/cmake/cynosure)
  set(namelink NAMELINK_SKIP)
  set(library_version ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
else()
  set(library_dir ${CMAKE_INSTALL_LIBDIR})
  set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cynosure)
  set(namelink)
  set(library_version ${PROJECT_VERSION})
endif()

# Before 1.0 each minor version may change the binary interface.
set_target_properties(cynosure PROPERTIES VERSION ${library_version}
                                          SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

install(
  TARGETS cynosure cynosure_headers
  EXPORT cynosureTargets
  LIBRARY DESTINATION ${library_dir} ${namelink}
  ARCHIVE DESTINATION ${library_dir}
  RUNTIME DESTINATION ${library_dir})
if(TARGET cynosure_torch)
  install(TARGETS cynosure_torch LIBRARY DESTINATION ${library_dir})
endif()
install(DIRECTORY include/cynosure DESTINATION include FILES_MATCHING PATTERN "*.hpp")
install(EXPORT cynosureTargets NAMESPACE cynosure:: DESTINATION ${config_dir})

configure_package_config_file(cmake/cynosureConfig.cmake.in cynosureConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(cynosureConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/cynosureConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/cynosureConfigVersion.cmake
        DESTINATION ${config_dir})
