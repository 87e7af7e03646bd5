# SPDX-License-Identifier: BSD-3-Clause
# What the CUDA and HIP drivers are built from: the targets openreg_cuda_headers, openreg_cuda_library and
# openreg_hip_headers, where the vendor's files are found, and one status line a vendor.
#
#   OPENREG_CUDA, OPENREG_HIP = AUTO   built where the vendor's files are found
#                               ON     an error where they are not
#                               OFF    left out
#
# CUDA needs the headers and libcudart_static.a: a toolkit of version 12 or newer, or the packages nvidia-cuda-runtime
# and nvidia-cuda-crt in the Python environment. HIP needs headers alone (version 5.2 or newer), because its library is
# found at run time.
option(OPENREG_HIP_ON_NVIDIA "Build the HIP driver's calls over CUDA's runtime too, for tests; never installed" OFF)

foreach(vendor CUDA HIP)
  set(OPENREG_${vendor} AUTO CACHE STRING "Build the ${vendor} driver: AUTO, ON or OFF")
  set_property(CACHE OPENREG_${vendor} PROPERTY STRINGS AUTO ON OFF)
  set(openreg_${vendor}_found FALSE)
endforeach()

# Where Python packages are: of the interpreter that builds this package, else of the active environment, else python3.
function(openreg_python_packages out)
  if(Python3_EXECUTABLE)
    set(python "${Python3_EXECUTABLE}")
  elseif(DEFINED ENV{VIRTUAL_ENV})
    set(python "$ENV{VIRTUAL_ENV}/bin/python")
  else()
    set(python python3)
  endif()
  execute_process(COMMAND ${python} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE directory RESULT_VARIABLE result OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT result EQUAL 0)
    set(directory "")
  endif()
  set(${out} "${directory}" PARENT_SCOPE)
endfunction()

# Sets openreg_cuda_include and openreg_cuda_static to the toolkit's.
macro(openreg_find_cuda_toolkit)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
    set(openreg_cuda_include ${CUDAToolkit_INCLUDE_DIRS})
    get_target_property(openreg_cuda_static CUDA::cudart_static IMPORTED_LOCATION)
    set(openreg_cuda_where "${openreg_cuda_static}")
  endif()
endmacro()

# The same from Python packages. Nothing is looked for elsewhere: headers of one version and a library of another would
# compile.
macro(openreg_find_cuda_packages)
  openreg_python_packages(openreg_packages)
  file(GLOB openreg_cuda_roots LIST_DIRECTORIES TRUE "${openreg_packages}/nvidia/cu[0-9]*")
  list(APPEND openreg_cuda_roots "${openreg_packages}/nvidia/cuda_runtime")
  foreach(root IN LISTS openreg_cuda_roots)
    if(openreg_cuda_static OR NOT openreg_packages)
      break()
    endif()
    find_path(OPENREG_CUDA_RUNTIME_INCLUDE cuda_runtime_api.h PATHS "${root}/include" NO_DEFAULT_PATH)
    find_path(OPENREG_CUDA_CRT_INCLUDE crt/host_defines.h
      PATHS "${root}/include" "${root}/../cuda_crt/include" "${root}/../cuda_nvcc/include" NO_DEFAULT_PATH)
    find_library(OPENREG_CUDA_STATIC_LIBRARY libcudart_static.a PATHS "${root}/lib" NO_DEFAULT_PATH)
    mark_as_advanced(OPENREG_CUDA_RUNTIME_INCLUDE OPENREG_CUDA_CRT_INCLUDE OPENREG_CUDA_STATIC_LIBRARY)
    if(OPENREG_CUDA_RUNTIME_INCLUDE AND OPENREG_CUDA_CRT_INCLUDE AND OPENREG_CUDA_STATIC_LIBRARY)
      set(openreg_cuda_include "${OPENREG_CUDA_RUNTIME_INCLUDE}" "${OPENREG_CUDA_CRT_INCLUDE}")
      set(openreg_cuda_static "${OPENREG_CUDA_STATIC_LIBRARY}")
      set(openreg_cuda_where "${openreg_cuda_static}")
    endif()
  endforeach()
endmacro()

# The number that a header defines a name as, or 0.
function(openreg_read_define file name out)
  set(value 0)
  if(EXISTS "${file}")
    file(STRINGS "${file}" line REGEX "^#define[ \t]+${name}[ \t]+[0-9]+")
    if(line MATCHES "${name}[ \t]+([0-9]+)")
      set(value ${CMAKE_MATCH_1})
    endif()
  endif()
  set(${out} ${value} PARENT_SCOPE)
endfunction()

function(openreg_gpu_left_out vendor reason)
  if(OPENREG_${vendor} STREQUAL "AUTO")
    message(STATUS "${vendor} driver: left out, ${reason}")
  else()
    message(FATAL_ERROR "OPENREG_${vendor}=${OPENREG_${vendor}}, but ${reason}")
  endif()
endfunction()

if(OPENREG_CUDA MATCHES "^(OFF|0|NO|FALSE)$")
  message(STATUS "CUDA driver: left out, OPENREG_CUDA=${OPENREG_CUDA}")
else()
  openreg_find_cuda_toolkit()
  if(NOT openreg_cuda_static)
    openreg_find_cuda_packages()
  endif()
  if(openreg_cuda_static)
    list(GET openreg_cuda_include 0 openreg_cuda_first)
    openreg_read_define("${openreg_cuda_first}/cuda_runtime_api.h" CUDART_VERSION openreg_cuda_version)
    if(openreg_cuda_version LESS 12000)
      openreg_gpu_left_out(CUDA "CUDA ${openreg_cuda_version} of ${openreg_cuda_where} is older than 12000")
    else()
      message(STATUS "CUDA driver: version ${openreg_cuda_version}, ${openreg_cuda_where}")
      set(openreg_CUDA_found TRUE)
      add_library(openreg_cuda_headers INTERFACE)
      target_include_directories(openreg_cuda_headers SYSTEM INTERFACE ${openreg_cuda_include})
      add_library(openreg_cuda_library INTERFACE)
      target_link_libraries(openreg_cuda_library INTERFACE
        "${openreg_cuda_static}" Threads::Threads ${CMAKE_DL_LIBS} rt)
    endif()
  else()
    openreg_gpu_left_out(CUDA
      "neither a CUDA toolkit nor the Python packages nvidia-cuda-runtime and nvidia-cuda-crt are found")
  endif()
endif()

# find_package(hip) asks for a HIP compiler, which a driver in C has no use for.
if(OPENREG_HIP MATCHES "^(OFF|0|NO|FALSE)$")
  message(STATUS "HIP driver: left out, OPENREG_HIP=${OPENREG_HIP}")
else()
  find_path(OPENREG_HIP_INCLUDE hip/hip_runtime_api.h HINTS "$ENV{ROCM_PATH}/include" /opt/rocm/include)
  mark_as_advanced(OPENREG_HIP_INCLUDE)
  if(OPENREG_HIP_INCLUDE)
    openreg_read_define("${OPENREG_HIP_INCLUDE}/hip/hip_version.h" HIP_VERSION_MAJOR openreg_hip_major)
    openreg_read_define("${OPENREG_HIP_INCLUDE}/hip/hip_version.h" HIP_VERSION_MINOR openreg_hip_minor)
    set(openreg_hip_version "${openreg_hip_major}.${openreg_hip_minor}")
    if(openreg_hip_version VERSION_LESS 5.2)
      openreg_gpu_left_out(HIP "HIP ${openreg_hip_version} of ${OPENREG_HIP_INCLUDE} is older than 5.2")
    else()
      message(STATUS "HIP driver: version ${openreg_hip_version}, ${OPENREG_HIP_INCLUDE}")
      set(openreg_HIP_found TRUE)
      add_library(openreg_hip_headers INTERFACE)
      target_include_directories(openreg_hip_headers SYSTEM INTERFACE "${OPENREG_HIP_INCLUDE}")
      # Of HIP 6 hipHostMalloc() has a new name, which HIP 5 lacks.
      target_compile_options(openreg_hip_headers INTERFACE -Wno-deprecated-declarations)
    endif()
  else()
    openreg_gpu_left_out(HIP "hip/hip_runtime_api.h is not found (Debian: libamdhip64-dev; else set ROCM_PATH)")
  endif()
endif()

if(OPENREG_HIP_ON_NVIDIA AND NOT (openreg_CUDA_found AND openreg_HIP_found AND
   EXISTS "${OPENREG_HIP_INCLUDE}/hip/nvidia_detail/nvidia_hip_runtime_api.h"))
  message(FATAL_ERROR "OPENREG_HIP_ON_NVIDIA=ON needs CUDA, and HIP's headers with those for NVIDIA")
endif()
