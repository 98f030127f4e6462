# SPDX-License-Identifier: Apache-2.0
# The module _eager (src/eager): plain eager calls through torch's C++ types, so bound to the torch that is installed for
# the build, whose version is part of the file's name. With another torch the package runs without it, a little slower.
option(CYNOSURE_BUILD_EAGER "Build the module _eager for the torch that is found" ON)
if(NOT CYNOSURE_BUILD_EAGER OR NOT TARGET cynosure_torch)
  return()
endif()
file(STRINGS ${torch_dir}/version.py version_line REGEX "^__version__ *=")
if(NOT version_line MATCHES "['\"]([0-9][^'\"+]*)")
  message(STATUS "eager: torch's version was not found, so plain calls go through Python")
  return()
endif()
set(eager_torch ${CMAKE_MATCH_1})

cynosure_glob(sources ${PROJECT_SOURCE_DIR}/src/eager)
python_add_library(_eager MODULE WITH_SOABI ${sources})
cynosure_house_style(_eager)
set_target_properties(_eager PROPERTIES OUTPUT_NAME _eager_torch${eager_torch})
target_include_directories(_eager SYSTEM PRIVATE ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_link_libraries(_eager PRIVATE ${torch_dir}/lib/libtorch_python.so ${torch_dir}/lib/libtorch_cpu.so
                                     ${torch_dir}/lib/libc10.so)
set_target_properties(_eager PROPERTIES BUILD_RPATH "" INSTALL_RPATH "") # torch is loaded before
install(TARGETS _eager LIBRARY DESTINATION .)
