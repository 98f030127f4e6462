# SPDX-License-Identifier: Apache-2.0
# The module _core (src/python) and its type stub.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_ROOT
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

cynosure_glob(sources ${PROJECT_SOURCE_DIR}/src/python)
nanobind_add_module(_core NB_STATIC NB_SUPPRESS_WARNINGS ${sources})
cynosure_house_style(_core)
# Static layers first: they use the shared library and bring no link to it of their own.
target_link_libraries(_core PRIVATE cynosure_io cynosure_detect cynosure)
target_compile_definitions(_core PRIVATE CYNOSURE_CUDNN_BUILT=$<TARGET_EXISTS:cynosure_backend_cudnn>)
set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS _core LIBRARY DESTINATION .)

nanobind_add_stub(
  _core_stub
  MODULE _core
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/_core.pyi
  PYTHON_PATH $<TARGET_FILE_DIR:_core>
  DEPENDS _core)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_core.pyi DESTINATION .)
