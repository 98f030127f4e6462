# SPDX-License-Identifier: Apache-2.0
# nlohmann_json::nlohmann_json, the header-only C++ library: as its own CMake package where the system has one, else
# the headers of the PyPI package nlohmann-json (one of our build requirements), which ships no CMake configuration.

find_package(nlohmann_json 3.9 CONFIG QUIET)
if(nlohmann_json_FOUND)
  set(NlohmannJson_INCLUDE_DIR ${nlohmann_json_DIR})
else()
  # A wheel build has the build environment's site-packages on CMAKE_PREFIX_PATH; elsewhere ask the Python in use.
  find_path(NlohmannJson_INCLUDE_DIR nlohmann/json.hpp PATH_SUFFIXES nlohmann_json/include)
  if(NOT NlohmannJson_INCLUDE_DIR)
    set(python ${Python_EXECUTABLE})
    if(NOT python)
      find_program(python NAMES python3 python NO_CACHE)
    endif()
    if(python)
      # Found, not imported: importing it needs a further package.
      execute_process(
        COMMAND ${python} -c
                "import importlib.util as u; print(u.find_spec('nlohmann_json').submodule_search_locations[0])"
        OUTPUT_VARIABLE package
        ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
      find_path(NlohmannJson_INCLUDE_DIR nlohmann/json.hpp PATHS ${package}/include NO_DEFAULT_PATH)
    endif()
  endif()
  if(NlohmannJson_INCLUDE_DIR AND NOT TARGET nlohmann_json::nlohmann_json)
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
    set_target_properties(nlohmann_json::nlohmann_json PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                                  ${NlohmannJson_INCLUDE_DIR})
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NlohmannJson REQUIRED_VARS NlohmannJson_INCLUDE_DIR
  REASON_FAILURE_MESSAGE
    "nlohmann/json.hpp not found: pip install nlohmann-json, or the system's package (Debian: nlohmann-json3-dev)")
mark_as_advanced(NlohmannJson_INCLUDE_DIR)
