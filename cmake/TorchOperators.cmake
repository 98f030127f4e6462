# SPDX-License-Identifier: Apache-2.0
# The operators (src/torch), where torch is installed for the Python in use. Only headers of the stable ABI and one
# library are taken from it: torch's own CMake package would ask for a CUDA toolkit. One build serves torch 2.10 and
# newer.
option(CYNOSURE_BUILD_OPERATORS "Build the operators where torch is found" ON)
if(NOT CYNOSURE_BUILD_OPERATORS OR CYNOSURE_SANITIZE)
  return()
endif()
if(NOT Python_EXECUTABLE)
  find_program(operators_python NAMES python3 python NO_CACHE)
else()
  set(operators_python ${Python_EXECUTABLE})
endif()
# Found, not imported: importing takes seconds.
execute_process(
  COMMAND ${operators_python} -c
          "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE torch_dir
  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT EXISTS "${torch_dir}/include/torch/csrc/stable/library.h")
  message(STATUS "operators: torch 2.10 or newer was not found, so only the core and the command line are built")
  return()
endif()

cynosure_glob(sources ${PROJECT_SOURCE_DIR}/src/torch)
set(backends cynosure_backend_cpu)
if(TARGET cynosure_backend_cudnn)
  list(APPEND backends cynosure_backend_cudnn)
else()
  list(FILTER sources EXCLUDE REGEX "/run_cudnn.cpp$")
  list(APPEND sources ${PROJECT_SOURCE_DIR}/src/torch/absent/run_cudnn.cpp)
endif()
add_library(cynosure_torch SHARED ${sources})
cynosure_house_style(cynosure_torch)
target_include_directories(cynosure_torch SYSTEM PRIVATE ${torch_dir}/include)
target_compile_definitions(cynosure_torch PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
target_link_libraries(cynosure_torch PRIVATE ${backends} cynosure_detect cynosure ${torch_dir}/lib/libtorch_cpu.so)
set_target_properties(cynosure_torch PROPERTIES INSTALL_RPATH "$ORIGIN")
