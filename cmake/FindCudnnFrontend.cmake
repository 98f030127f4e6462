# SPDX-License-Identifier: Apache-2.0
# CudnnFrontend::headers: cudnn-frontend (the PyPI package nvidia-cudnn-frontend, header-only) with the headers of cuDNN
# and of the CUDA runtime that it includes. These are in the wheels that torch installs, or in a toolkit.
set(python ${Python_EXECUTABLE})
if(NOT python)
  find_program(python NAMES python3 python NO_CACHE)
endif()
set(site_packages)
if(python)
  execute_process(
    COMMAND ${python} -c "import sys; print(';'.join(p for p in sys.path if p.endswith('-packages')))"
    OUTPUT_VARIABLE site_packages
    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(wheels)
foreach(folder ${site_packages})
  list(APPEND wheels ${folder}/include ${folder}/nvidia/cudnn/include ${folder}/nvidia/cu13/include
       ${folder}/nvidia/cuda_runtime/include)
endforeach()
# The wheels first: they are what runs with this torch.
foreach(part cudnn_frontend.h cudnn.h cuda_runtime.h)
  string(MAKE_C_IDENTIFIER ${part} name)
  find_path(CudnnFrontend_${name}_DIR ${part} HINTS ${wheels} PATH_SUFFIXES include)
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  CudnnFrontend REQUIRED_VARS CudnnFrontend_cudnn_frontend_h_DIR CudnnFrontend_cudnn_h_DIR
                              CudnnFrontend_cuda_runtime_h_DIR)
mark_as_advanced(CudnnFrontend_cudnn_frontend_h_DIR CudnnFrontend_cudnn_h_DIR CudnnFrontend_cuda_runtime_h_DIR)
if(CudnnFrontend_FOUND AND NOT TARGET CudnnFrontend::headers)
  add_library(CudnnFrontend::headers INTERFACE IMPORTED)
  set_target_properties(
    CudnnFrontend::headers
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
               "${CudnnFrontend_cudnn_frontend_h_DIR};${CudnnFrontend_cudnn_h_DIR};${CudnnFrontend_cuda_runtime_h_DIR}")
endif()
