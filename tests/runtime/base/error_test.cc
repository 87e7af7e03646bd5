// SPDX-License-Identifier: BSD-3-Clause
// Errors and log lines: codes, the thread's record, what becomes of a driver's error, where log lines go.
#include <atomic>
#include <thread>

#include "runtime_test.h"

namespace openreg_test {
namespace {

openreg_status chatty_open(const openreg_host* host, const openreg_option* options, uint32_t n, openreg_instance* out);

class ErrorTest : public RuntimeTest {
 protected:
  void use_chatty(openreg_status (*device_sync)(openreg_instance, int32_t)) {
    use_full_toy([device_sync](openreg_driver& table) {
      table.name = "chatty";
      table.open = chatty_open;
      table.device_sync = device_sync;
    });
  }
};

// Every code has its own name and text, and a number outside the list reads as INTERNAL.
TEST_F(ErrorTest, CodesHaveNamesAndTexts) {
  EXPECT_STREQ(openreg_status_name(OPENREG_OK), "OPENREG_OK");
  EXPECT_STREQ(openreg_status_name(OPENREG_E_NOMEM), "OPENREG_E_NOMEM");
  EXPECT_STREQ(openreg_status_text(OPENREG_E_NOMEM), "out of memory");
  EXPECT_STREQ(openreg_status_name(OPENREG_E_BUSY), "OPENREG_E_BUSY");
  EXPECT_STREQ(openreg_status_name(OPENREG_E_PEER), "OPENREG_E_PEER");
  EXPECT_STREQ(openreg_status_text(OPENREG_E_TIMEOUT), "timed out");
  EXPECT_STREQ(openreg_status_name(OPENREG_E_CAPTURE), "OPENREG_E_CAPTURE");
  EXPECT_STREQ(openreg_status_name(4711), "OPENREG_E_INTERNAL");
  EXPECT_STREQ(openreg_status_text(-1), openreg_status_text(OPENREG_E_INTERNAL));
}

TEST_F(ErrorTest, VersionIsThatOfTheHeader) { EXPECT_STREQ(openreg_version(), OPENREG_VERSION_STRING); }

// A new thread has no error; one thread's error is not seen by another; clear forgets; success does not.
TEST_F(ErrorTest, RecordBelongsToTheThread) {
  set("OPENREG_DRIVERS", "sim");
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  ASSERT_EQ(openreg_set_device(9), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_E_INVALID);
  EXPECT_EQ(openreg_last_error()->names_code, 0);
  std::thread([] {
    EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
    EXPECT_STREQ(openreg_last_error()->message, "");
    EXPECT_EQ(openreg_set_device(-2), OPENREG_E_INVALID);
    EXPECT_NE(last_message().find("got -2"), std::string::npos);
  }).join();
  EXPECT_CONTAINS(last_message(), "got 9");
  EXPECT_EQ(openreg_set_device(0), OPENREG_OK);
  EXPECT_CONTAINS(last_message(), "got 9");
  openreg_clear_error();
  EXPECT_EQ(openreg_last_error()->code, OPENREG_OK);
  EXPECT_STREQ(openreg_last_error()->message, "");
}

// acceptance 4.13: a failing driver call gives an error with the call, the driver, its text, the code's name and the
// vendor's number.
TEST_F(ErrorTest, DriverErrorIsCompleted) {
  use_full_toy();
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  toy().fail("device_sync", 1, OPENREG_E_DEVICE_LOST, 0);
  EXPECT_EQ(openreg_device_synchronize(1), OPENREG_E_DEVICE_LOST);
  const openreg_error* error = openreg_last_error();
  EXPECT_EQ(error->code, OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(error->vendor_code, 42);
  EXPECT_STREQ(error->driver, "full_toy");
  EXPECT_EQ(error->names_code, 1);
  EXPECT_STREQ(error->message,
               "openreg_device_synchronize: driver \"full_toy\": device_sync was told to fail (OPENREG_E_DEVICE_LOST)");
}

// A code that the runtime does not know is INTERNAL and named; a driver that fails without a text gets one, and not the
// text of an earlier failure.
TEST_F(ErrorTest, DefectiveDriversAreDescribed) {
  use_full_toy();
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  toy().fail("device_sync", 1, 77, 0);
  expect_error(openreg_device_synchronize(0), OPENREG_E_INTERNAL, "unknown code 77");
  EXPECT_EQ(openreg_last_error()->vendor_code, 42);
  toy().fail("device_sync", 1, OPENREG_E_UNSUPPORTED, FULL_TOY_SILENT);
  expect_error(openreg_device_synchronize(0), OPENREG_E_UNSUPPORTED, "failed without a reason (OPENREG_E_UNSUPPORTED)");
  EXPECT_EQ(openreg_last_error()->vendor_code, 0);
}

const openreg_host* chatty_host = nullptr;
std::string chatty_text;  // NOLINT: given to set_error by the driver below

openreg_status chatty_code = OPENREG_E_INTERNAL;

openreg_status chatty_sync_ok(openreg_instance, int32_t) {
  chatty_host->set_error(chatty_host->ctx, OPENREG_E_INVALID, 1, "said, but not meant");
  return OPENREG_OK;
}
openreg_status chatty_sync_fails(openreg_instance, int32_t) {
  chatty_host->set_error(chatty_host->ctx, chatty_code, 1, chatty_text.empty() ? nullptr : chatty_text.c_str());
  return OPENREG_E_INTERNAL;
}
openreg_status chatty_open(const openreg_host* host, const openreg_option* options, uint32_t n, openreg_instance* out) {
  chatty_host = host;
  host->log(host->ctx, OPENREG_LOG_WARNING, "hello from open");
  host->log(host->ctx, OPENREG_LOG_WARNING, nullptr);
  return toy().table()->open(host, options, n, out);
}

// A driver that sets an error and then succeeds breaks the contract, but "success leaves the last error alone" holds.
TEST_F(ErrorTest, SuccessLeavesTheLastErrorAlone) {
  use_chatty(chatty_sync_ok);
  ASSERT_EQ(openreg_set_device(7), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_OK);
  EXPECT_CONTAINS(last_message(), "got 7");
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "hello from open"), 1);
}

// A text longer than 511 bytes is cut between characters.
TEST_F(ErrorTest, LongTextsAreCutBetweenCharacters) {
  use_chatty(chatty_sync_fails);
  chatty_text = std::string(510, 'x') + "\xc3\xa4" + std::string(600, 'y');
  expect_error(openreg_device_synchronize(0), OPENREG_E_INTERNAL, std::string(510, 'x') + " (OPENREG_E_INTERNAL)");
  EXPECT_EQ(last_message().find('\xc3'), std::string::npos);
  chatty_text = "";
  expect_error(openreg_device_synchronize(0), OPENREG_E_INTERNAL, "driver \"chatty\":  (OPENREG_E_INTERNAL)");
}

// Texts of drivers, names and files are shown as UTF-8 without what controls a terminal, and begin no line of their own.
TEST_F(ErrorTest, ForeignTextsAreShownAsText) {
  use_chatty(chatty_sync_fails);
  chatty_text = "a\x1b[31mb\nopenreg: error: c\xff\xc3\xa4\xc2\x9b\xed\xa0\x80\xc3\r\n  d\t\x7f";
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(
      last_message(),
      "a\\x1b[31mb\nopenreg: error: c\\xff\xc3\xa4\\xc2\\x9b\\xed\\xa0\\x80\\xc3\\x0d\n  d\t\\x7f (OPENREG_E");
  set("OPENREG_LOG_LEVEL", "x\nopenreg: error: forged\xff");
  set("OPENREG_DRIVERS", "x\nopenreg: error: forged\xff");
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_device_count(), 0);
  EXPECT_CONTAINS(lines(OPENREG_LOG_WARNING).back(), "x\\x0aopenreg: error: forged\\xff");
  char shown[9] = "";
  openreg_show_text(shown, sizeof shown, "a\xff\nb");
  EXPECT_STREQ(shown, "a\\xff");  // no half of an escape
}

// What a driver's text looks like changes nothing: it is never read for the names of calls, drivers or codes.
TEST_F(ErrorTest, TextsAreNotTakenApart) {
  use_chatty(chatty_sync_fails);
  chatty_text = "openreg_device_synchronize: driver \"chatty\": Driver 'x' (OPENREG_E_NOMEM)";
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_E_INTERNAL);
  EXPECT_EQ(last_message(), "openreg_device_synchronize: driver \"chatty\": " + chatty_text + " (OPENREG_E_INTERNAL)");
  EXPECT_EQ(openreg_last_error()->names_code, 1);
}

// Likewise of a driver that fails to open: its record keeps the text as it was given.
TEST_F(ErrorTest, TextsOfFailedDriversAreKept) {
  use_full_toy([](openreg_driver& table) {
    table.name = "chatty";
    table.open = [](const openreg_host* host, const openreg_option*, uint32_t, openreg_instance*) {
      return openreg_fail(host, OPENREG_E_INTERNAL, 5, "%s", "openreg_init: driver \"chatty\": Driver 'y' is tired");
    };
  });
  set("OPENREG_DRIVERS", "chatty");
  EXPECT_EQ(openreg_init(), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(),
                  "'chatty': openreg_init: driver \"chatty\": Driver 'y' is tired (OPENREG_E_INTERNAL)");
  EXPECT_EQ(openreg_last_error()->vendor_code, 5);
  EXPECT_STREQ(openreg_last_error()->driver, "chatty");
}

// The code that a slot returns counts; where the driver told set_error() another one, the text says so.
TEST_F(ErrorTest, CodesThatDifferAreShown) {
  use_chatty(chatty_sync_fails);
  chatty_text = "two minds";
  chatty_code = OPENREG_E_NOMEM;
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(last_message(), "two minds (OPENREG_E_INTERNAL; set_error() was given code 2)");
  chatty_code = OPENREG_E_INTERNAL;
  expect_error(openreg_device_synchronize(0), OPENREG_E_INTERNAL, "two minds (OPENREG_E_INTERNAL)");
}

// OPENREG_LOG_LEVEL is a threshold, read again by each initialisation; an unknown word means "warning".
TEST_F(ErrorTest, LogLevelIsAThreshold) {
  set("OPENREG_DRIVERS", "sim");
  set("OPENREG_LOG_LEVEL", "warning");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_TRUE(lines().empty()) << lines()[0];
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_LOG_LEVEL", "Info");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_FALSE(lines(OPENREG_LOG_INFO).empty());
  EXPECT_TRUE(lines(OPENREG_LOG_DEBUG).empty());
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  const size_t before = lines().size();
  set("OPENREG_LOG_LEVEL", "loud");
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  EXPECT_EQ(lines().size(), before);
}

// Without a callback a line goes to stderr, whole, with its level.
TEST_F(ErrorTest, DefaultLogGoesToStderr) {
  openreg_log_set_callback(nullptr, nullptr);
  set("OPENREG_DRIVERS", "nobody");
  testing::internal::CaptureStderr();
  EXPECT_EQ(openreg_device_count(), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_CONTAINS(text,
                  "openreg: warning: Device initialization: openreg_device_count: Unable to "
                  "initialize driver 'nobody'");
  EXPECT_EQ(text.back(), '\n');
}

std::atomic<int> mismatches{0};
void check_pair(void* context, int32_t, const char*) { mismatches += context != &mismatches; }
void check_other_pair(void* context, int32_t, const char*) { mismatches += context != nullptr; }

// Threads that log while another changes the callback always see a matching pair of function and context.
TEST_F(ErrorTest, CallbackCanChangeWhileOthersLog) {
  use_chatty(toy().table()->device_sync);
  ASSERT_EQ(openreg_init(), OPENREG_OK);
  openreg_log_set_callback(check_other_pair, nullptr);
  std::atomic<bool> stop{false};
  Threads threads(2, [&] {
    while (!stop) chatty_host->log(chatty_host->ctx, OPENREG_LOG_ERROR, "line");
  });
  for (int i = 0; i < 2000; ++i) {
    if (i % 2 == 0) {
      openreg_log_set_callback(check_pair, &mismatches);
    } else {
      openreg_log_set_callback(check_other_pair, nullptr);
    }
  }
  stop = true;
  threads.join();
  EXPECT_EQ(mismatches, 0);
}

// Bad arguments of the functions that fill records.
TEST_F(ErrorTest, RecordsRefuseMissingSizes) {
  EXPECT_EQ(openreg_driver_get_record(0, nullptr), OPENREG_E_INVALID);
  openreg_driver_record record{};
  EXPECT_EQ(openreg_driver_get_record(0, &record), OPENREG_E_INVALID);
  record.struct_size = sizeof record;
  EXPECT_EQ(openreg_driver_get_record(-1, &record), OPENREG_E_INVALID);
  expect_error(openreg_driver_get_record(10000, &record), OPENREG_E_INVALID, "It must be in [0, ");
  EXPECT_CONTAINS(last_message(), "but got 10000");
}

}  // namespace
}  // namespace openreg_test
