# SPDX-License-Identifier: BSD-3-Clause
# openreg_options: warnings, sanitizers and coverage, for `target_link_libraries(x PRIVATE openreg_options)`, and openreg_shipped for what is installed.
add_library(openreg_options INTERFACE)

target_compile_options(openreg_options INTERFACE
  -Wall -Wextra -Wshadow
  "$<$<COMPILE_LANGUAGE:C>:-Wpedantic;-Wstrict-prototypes;-Wmissing-prototypes>"
  "$<$<COMPILE_LANG_AND_ID:C,Clang>:-Wunreachable-code-aggressive>"
  "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wunreachable-code-aggressive>")
if(OPENREG_WERROR)
  target_compile_options(openreg_options INTERFACE -Werror)
endif()

if(OPENREG_SANITIZE)
  target_compile_options(openreg_options INTERFACE
    -fsanitize=${OPENREG_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g
    # The tests are C++, and keep their -O0: most of the time of these builds is theirs.
    $<$<AND:$<NOT:$<CONFIG:Debug>>,$<COMPILE_LANGUAGE:C>>:-O1>)
  target_link_options(openreg_options INTERFACE -fsanitize=${OPENREG_SANITIZE})
endif()

if(OPENREG_COVERAGE)
  target_compile_options(openreg_options INTERFACE --coverage -O0 -g -fprofile-update=atomic)
  target_link_options(openreg_options INTERFACE --coverage)
endif()

# What is installed is hardened, and says nothing of the machine that has built it. Tests are compiled without optimisation,
# which _FORTIFY_SOURCE needs, and sanitizers look for the same.
add_library(openreg_shipped INTERFACE)
target_link_libraries(openreg_shipped INTERFACE openreg_options)
target_compile_options(openreg_shipped INTERFACE -fstack-protector-strong)
# By folder: the last map that fits holds, and PyTorch's headers may lie in the checkout's .venv (OpenregTorch.cmake).
foreach(openreg_folder runtime shim csrc)
  target_compile_options(openreg_shipped INTERFACE
    "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/${openreg_folder}/=${openreg_folder}/")
endforeach()
target_link_options(openreg_shipped INTERFACE "LINKER:-z,relro" "LINKER:-z,now")
if(NOT OPENREG_SANITIZE AND NOT OPENREG_COVERAGE)
  target_compile_options(openreg_shipped INTERFACE "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()

# With OPENREG_UNITY the C++ files of a folder are one unit: most of their time is PyTorch's headers. SEPARATE names files that
# aren't compiled with others, as they have no precompiled header; WHOLE makes one unit of all folders.
function(openreg_group_by_folder target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WHOLE" "" "SEPARATE")
  if(arg_SEPARATE)
    set_source_files_properties(${arg_SEPARATE} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  if(NOT OPENREG_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
    UNITY_BUILD_RELOCATABLE ON) # for ccache: the same unit in any checkout
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.(cpp|cc)$")
      get_filename_component(folder "${source}" ABSOLUTE)
      get_filename_component(folder "${folder}" DIRECTORY)
      file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${folder}")
      if(arg_WHOLE)
        set(folder all)
      endif()
      string(MAKE_C_IDENTIFIER "${folder}" group)
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
    endif()
  endforeach()
endfunction()
