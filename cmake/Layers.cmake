# SPDX-License-Identifier: Apache-2.0
# What every target of ours shares, and cynosure_add_layers, which makes a target from folders of src/.

add_library(cynosure_headers INTERFACE)
target_compile_features(cynosure_headers INTERFACE cxx_std_20)
target_include_directories(
  cynosure_headers INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
set_target_properties(cynosure_headers PROPERTIES EXPORT_NAME headers)

# cynosure_private: include paths of the sources, warnings, sanitizers. Never installed.
add_library(cynosure_private INTERFACE)
target_include_directories(cynosure_private INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(cynosure_private INTERFACE cynosure_headers)
target_compile_options(cynosure_private INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
# GCC 12 warns of overlapping copies in std::string's own operator+ (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(cynosure_private INTERFACE -Wno-restrict)
endif()
if(CYNOSURE_WARNINGS_AS_ERRORS)
  target_compile_options(cynosure_private INTERFACE -Werror)
endif()

# GCC's sanitizers get in the way of its own analysis of what is initialised: it warns of variants in the library.
if(CYNOSURE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(cynosure_private INTERFACE -Wno-maybe-uninitialized)
endif()

if(CYNOSURE_SANITIZE)
  add_compile_options(-fsanitize=${CYNOSURE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${CYNOSURE_SANITIZE})
endif()

# Sources in the given folders, relative to the current directory. New and removed files are noticed by the build.
function(cynosure_glob out)
  list(TRANSFORM ARGN APPEND "/*.cpp" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

function(cynosure_house_style target)
  set_target_properties(
    ${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                         VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:cynosure_private>)
endfunction()

# cynosure_add_layers(<target> OBJECT|STATIC <folder of src>...)
function(cynosure_add_layers target kind)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/src/" OUTPUT_VARIABLE folders)
  cynosure_glob(sources ${folders})
  add_library(${target} ${kind} ${sources})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PUBLIC cynosure_headers)
  cynosure_house_style(${target})
endfunction()
