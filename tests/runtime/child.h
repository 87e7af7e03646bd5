/* SPDX-License-Identifier: BSD-3-Clause */
// child.h: what a test does in a child process, which is killed by its alarm if it hangs, or by a shell command.
#ifndef OPENREG_TESTS_CHILD_H
#define OPENREG_TESTS_CHILD_H

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace openreg_test {

// A child that has ended, and what waitpid() says of it; its exit status is 0 where `body` returned true.
struct Child {
  template <typename Body>
  explicit Child(Body body) : process(fork()) {
    if (process == 0) {
      alarm(60);
      const int result = body() ? 0 : 1;
#ifdef OPENREG_COVERAGE
      exit(result);
#else
      _exit(result);
#endif
    }
    if (process < 0 || waitpid(process, &status, 0) != process) status = -1;
  }
  // True if a signal has ended it.
  bool was_killed_by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

  pid_t process;
  int status = -1;
};

// Whether `body` returned true in a child.
template <typename Body>
bool in_child(Body body) {
  return Child(body).status == 0;
}

// What a shell command prints, which must end with this exit status.
inline std::string output_of(const std::string& command, int expected = 0) {
  FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t length; (length = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, length);
  const int result = pclose(pipe);
  EXPECT_EQ(WIFEXITED(result) ? WEXITSTATUS(result) : -1, expected) << command << '\n' << output;
  return output;
}

}  // namespace openreg_test

#endif
