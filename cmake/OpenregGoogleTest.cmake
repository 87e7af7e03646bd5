# SPDX-License-Identifier: BSD-3-Clause
# openreg_find_googletest(): makes the targets GTest::gtest and GTest::gtest_main. An installed GoogleTest is used
# where there is one (for example Debian's libgtest-dev); else its sources are fetched.
function(openreg_find_googletest)
  find_package(GTest QUIET)
  if(TARGET GTest::gtest_main)
    message(STATUS "GoogleTest: installed, ${GTest_DIR}")
    # Imported targets are visible in the directory that found them only.
    set_target_properties(GTest::gtest GTest::gtest_main PROPERTIES IMPORTED_GLOBAL TRUE)
    return()
  endif()
  message(STATUS "GoogleTest: not installed, fetching it")
  include(FetchContent)
  FetchContent_Declare(googletest
    GIT_REPOSITORY https://github.com/google/googletest.git
    GIT_TAG v1.15.2
    GIT_SHALLOW ON)
  set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
  set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
  FetchContent_MakeAvailable(googletest)
  if(NOT TARGET GTest::gtest_main)
    add_library(GTest::gtest ALIAS gtest)
    add_library(GTest::gtest_main ALIAS gtest_main)
  endif()
endfunction()
