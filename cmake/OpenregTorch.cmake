# SPDX-License-Identifier: BSD-3-Clause
# torch_cpp and torch_python: the C++ and the Python side of the torch that a Python interpreter imports.
#
# find_package(Torch) is not used: on a CUDA build of torch it asks for a CUDA toolkit, and nothing here links CUDA.
# The interpreter is -DPython3_EXECUTABLE=..., else the one of the active virtual environment, else python3.
if(DEFINED ENV{VIRTUAL_ENV} AND NOT Python3_EXECUTABLE)
  set(Python3_FIND_VIRTUALENV FIRST)
endif()
find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

# pip hides by PYTHONPATH what is installed where it builds in isolation (tools/pep517/openreg_build.py).
option(OPENREG_IGNORE_PYTHONPATH "Look for torch without PYTHONPATH" OFF)
mark_as_advanced(OPENREG_IGNORE_PYTHONPATH)
set(openreg_python_path "")
if(OPENREG_IGNORE_PYTHONPATH)
  set(openreg_python_path --unset=PYTHONPATH)
endif()

# What tools/fetch_torch.py has unpacked of a wheel can't be imported, as the rest of it isn't there.
set(OPENREG_TORCH_ROOT "" CACHE PATH "Folder of the package torch to build against, in the place of the one that Python imports")
if(OPENREG_TORCH_ROOT)
  file(STRINGS "${OPENREG_TORCH_ROOT}/version.py" OPENREG_TORCH_VERSION REGEX "^__version__ = ")
  string(REGEX MATCH "[0-9][^'\"]*" OPENREG_TORCH_VERSION "${OPENREG_TORCH_VERSION}")
  get_filename_component(OPENREG_TORCH_DIR "${OPENREG_TORCH_ROOT}" ABSOLUTE)
  set(OPENREG_TORCH_CXX11_ABI 1) # of all wheels since 2.7
else()
  # Autoloading is off: the torch that is queried must not load an older build of this very backend.
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env ${openreg_python_path} TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python3_EXECUTABLE} -c
            "import os, torch; print(os.path.dirname(torch.__file__)); print(torch.__version__); print(int(torch._C._GLIBCXX_USE_CXX11_ABI))"
    OUTPUT_VARIABLE openreg_torch_answer
    ERROR_VARIABLE openreg_torch_error
    RESULT_VARIABLE openreg_torch_result
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT openreg_torch_result EQUAL 0)
    message(FATAL_ERROR
      "${Python3_EXECUTABLE} cannot import torch:\n${openreg_torch_error}\n"
      "Install torch, name another interpreter with -DPython3_EXECUTABLE=..., "
      "or build the runtime alone with -DOPENREG_BUILD_TORCH=OFF.")
  endif()
  string(REPLACE "\n" ";" openreg_torch_answer "${openreg_torch_answer}")
  list(GET openreg_torch_answer 0 OPENREG_TORCH_DIR)
  list(GET openreg_torch_answer 1 OPENREG_TORCH_VERSION)
  list(GET openreg_torch_answer 2 OPENREG_TORCH_CXX11_ABI)
endif()
message(STATUS "torch ${OPENREG_TORCH_VERSION}: ${OPENREG_TORCH_DIR}")

# The minor versions of torch that are supported. The documentation, the sdist's requirement on torch and a release's
# wheels follow this list; tests/python/tools/test_torch_versions.py compares them. RELEASING.md says how one is added.
set(OPENREG_TORCH_MINORS 2.13 2.14 2.15)

# PyTorch's C++ interfaces are those of a minor version: what is built against one is installed into a folder of its own.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" OPENREG_TORCH_MINOR "${OPENREG_TORCH_VERSION}")
set(OPENREG_TORCH_INSTALL_DIR "lib/torch${OPENREG_TORCH_MINOR}")
list(GET OPENREG_TORCH_MINORS 0 openreg_oldest)
if(OPENREG_TORCH_MINOR VERSION_LESS openreg_oldest)
  message(FATAL_ERROR "torch ${OPENREG_TORCH_VERSION} is older than ${openreg_oldest}, the oldest that is supported")
elseif(NOT OPENREG_TORCH_MINOR IN_LIST OPENREG_TORCH_MINORS)
  message(WARNING "torch ${OPENREG_TORCH_VERSION} is not supported: nobody has tested this source with it")
endif()
# For setup.py, which packs what several build directories hold into one wheel.
set(OPENREG_TORCH_BUILT_FOR "${OPENREG_TORCH_VERSION}" CACHE INTERNAL "Version of PyTorch that this directory builds against")

add_library(torch_cpp INTERFACE IMPORTED GLOBAL)
target_include_directories(torch_cpp SYSTEM INTERFACE
  "${OPENREG_TORCH_DIR}/include" "${OPENREG_TORCH_DIR}/include/torch/csrc/api/include")
# With the second no header of ATen includes all operators, which takes ten seconds a file: a file includes ATen/ops/<operator>.h.
target_compile_definitions(torch_cpp INTERFACE _GLIBCXX_USE_CXX11_ABI=${OPENREG_TORCH_CXX11_ABI} AT_PER_OPERATOR_HEADERS)
# Texts of its TORCH_CHECK()s. ccache with a base directory has the compiler see paths relative to where it runs.
file(RELATIVE_PATH openreg_torch_from_build "${CMAKE_BINARY_DIR}" "${OPENREG_TORCH_DIR}")
foreach(openreg_place "${OPENREG_TORCH_DIR}" "${openreg_torch_from_build}")
  target_compile_options(torch_cpp INTERFACE "-ffile-prefix-map=${openreg_place}/=torch/")
endforeach()
target_link_directories(torch_cpp INTERFACE "${OPENREG_TORCH_DIR}/lib")
target_link_libraries(torch_cpp INTERFACE torch_cpu c10)

# Headers and exported functions are those of a torch for any Python, so what is linked may be another Python's.
add_library(torch_python INTERFACE IMPORTED GLOBAL)
target_link_libraries(torch_python INTERFACE torch_cpp "${OPENREG_TORCH_DIR}/lib/libtorch_python.so")

# Suffix of an extension module, ".cpython-311-x86_64-linux-gnu.so", and where the interpreter's headers are.
function(openreg_ask_python python out_suffix out_include)
  execute_process(
    COMMAND ${python} -c "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX') + ';' + s.get_path('include'))"
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(GET answer 0 suffix)
  list(GET answer 1 include)
  if(NOT EXISTS "${include}/Python.h")
    message(FATAL_ERROR "${python}: its headers are missing, there is no ${include}/Python.h")
  endif()
  set(${out_suffix} "${suffix}" PARENT_SCOPE)
  set(${out_include} "${include}" PARENT_SCOPE)
endfunction()
