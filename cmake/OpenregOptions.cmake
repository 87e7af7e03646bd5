# SPDX-License-Identifier: BSD-3-Clause
# openreg_options: warnings, sanitizers and coverage, for `target_link_libraries(x PRIVATE openreg_options)`.
add_library(openreg_options INTERFACE)

target_compile_options(openreg_options INTERFACE
  -Wall -Wextra -Wshadow
  "$<$<COMPILE_LANGUAGE:C>:-Wpedantic;-Wstrict-prototypes;-Wmissing-prototypes>")
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
