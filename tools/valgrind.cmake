# SPDX-License-Identifier: BSD-3-Clause
# Runs the runtime's tests in a build directory under valgrind, each in a process of its own, as CTest does: several leave
# something behind for good. Usage: ctest -S tools/valgrind.cmake,BUILD --parallel JOBS, with a full path.
find_program(CTEST_MEMORYCHECK_COMMAND valgrind REQUIRED)
get_filename_component(CTEST_SOURCE_DIRECTORY "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(CTEST_BINARY_DIRECTORY "${CTEST_SCRIPT_ARG}")
set(CTEST_MEMORYCHECK_COMMAND_OPTIONS
  "--quiet --fair-sched=yes --leak-check=full --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect")

ctest_start(Experimental QUIET)
file(REMOVE_RECURSE "${CTEST_BINARY_DIRECTORY}/Testing/Temporary") # logs of earlier runs

# The children of death tests end with memory in use, and forked ones abandon what their parent had, on purpose. Also, in a
# forked child the simulator's memory is not mapped, and the search for leaks stumbles over every page of it. On a stack as
# small as a signal may have there is no room for what valgrind puts there. Some addresses fault on purpose. "validated" repeats
# whole programs.
ctest_memcheck(
  EXCLUDE "^shim|[.]validated[.]|^fuzz|Death|Fork|DeviceMemoryFaults|FaultsTest.Ranks|RecorderTest.Written(OnASmallStack|InASignal)"
  RETURN_VALUE failed DEFECT_COUNT defects)
if(failed OR defects)
  execute_process(
    COMMAND sh -c "cat LastTestsFailed*.log; find . -name 'MemoryChecker.*.log' -size +0 -exec cat {} +"
    WORKING_DIRECTORY "${CTEST_BINARY_DIRECTORY}/Testing/Temporary")
  message(FATAL_ERROR "valgrind: ${defects} defects; ctest_memcheck() returned ${failed}")
endif()
