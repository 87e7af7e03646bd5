// SPDX-License-Identifier: BSD-3-Clause
// The values of variables, mutated: a hundred thousand of them, from the kept ones in seeds/variables, through every
// reader. None crashes, hangs or reads past its text, and each refusal says what was refused.
//
// Holds the runtime's objects, to reach the readers. The same seed gives the same inputs.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>

#include "runtime_test.h"

extern "C" {
#include "base/parse.h"
#include "base/text.h"
#include "driver/visible_devices.h"
#include "registry/driver_names.h"
#include "registry/libraries_env.h"
#include "registry/mock.h"
#include "registry/open_watchdog.h"
}

using openreg_test::last_message;
using openreg_test::RuntimeTest;

namespace {

constexpr int kInputsOfEach = 16000;

// Changes a value in the ways in which people and programs get it wrong.
class Mutator {
 public:
  Mutator(const std::string& seeds, unsigned seed) : random_(seed) {
    std::ifstream file(std::string(OPENREG_TEST_SEEDS_DIR) + "/variables/" + seeds);
    for (std::string line; std::getline(file, line);) seeds_.push_back(line);
    EXPECT_GE(seeds_.size(), 5u) << seeds;
  }
  std::string next() {
    std::string text = any_seed();
    for (size_t n = below(5); n > 0; --n) change(text);
    return text;
  }

 private:
  size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random_); }
  const std::string& any_seed() { return seeds_[below(seeds_.size())]; }
  void change(std::string& text) {
    static const char* const tokens[] = {",",
                                         ":",
                                         " ",
                                         "\t",
                                         "=",
                                         ".",
                                         "-",
                                         "0",
                                         "1",
                                         "9",
                                         "all",
                                         "gpu",
                                         ".json",
                                         "/",
                                         "\xc3\xa9",
                                         "\xff",
                                         "\x01",
                                         "%s%n",
                                         "18446744073709551616",
                                         "'",
                                         "\"",
                                         "\n"};
    const size_t at = below(text.size() + 1);
    switch (below(8)) {
      case 0:
        text.insert(at, tokens[below(sizeof tokens / sizeof tokens[0])]);
        break;
      case 1:
        text.erase(at, 1 + below(4));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(1 + below(255));
        break;
      case 3:
        text += "," + any_seed();
        break;
      case 4:
        text.insert(at, any_seed());
        break;
      case 5:
        for (char& c : text) c = static_cast<char>(below(2) != 0 ? std::toupper(static_cast<unsigned char>(c)) : c);
        break;
      case 6:
        text = text.substr(0, at) + text.substr(0, at) + text.substr(at);
        break;
      default:
        if (below(20) == 0) text.append(below(6000), text.empty() ? 'x' : text[0]);
    }
    if (text.size() > 20000) text.resize(20000);
  }

  std::mt19937 random_;
  std::vector<std::string> seeds_;
};

// A copy without a byte behind its end, for the address sanitizer.
class Exact {
 public:
  explicit Exact(const std::string& text) : bytes_(new char[text.size() + 1]) {
    std::memcpy(bytes_.get(), text.c_str(), text.size() + 1);
  }
  const char* text() const { return bytes_.get(); }

 private:
  std::unique_ptr<char[]> bytes_;
};

class VariablesFuzzTest : public RuntimeTest {
 protected:
  // As errors show a text, or log lines; its end is left out where what follows decides how it is shown.
  static std::string shown(std::string text, bool is_cut, bool is_logged = false) {
    while (is_cut && !text.empty() && ((static_cast<unsigned char>(text.back()) & 0x80u) != 0 || text.back() == '\n')) {
      text.pop_back();
    }
    std::string out(4 * text.size() + 1, '\0');
    openreg_text_copy_shown(out.data(), out.size(), text.c_str(), !is_logged);
    return out.c_str();
  }
  // The first bytes of what was refused stand in the message, as far as it quotes; the text is trimmed before.
  static void expect_named(const std::string& message, const std::string& input, bool is_logged = false) {
    const char* start = input.c_str();
    size_t length = input.size();
    openreg_text_trim(&start, &length);
    const std::string prefix = shown(std::string(start, std::min<size_t>(length, 16)), length > 16, is_logged);
    EXPECT_NE(message.find(prefix), std::string::npos) << "input: " << input << "\nmessage: " << message;
  }
  // Each input in turn; stops at the first one that fails.
  static void each(const char* seeds, unsigned seed, const std::function<void(const std::string&)>& feed) {
    Mutator mutator(seeds, seed);
    int fed = 0;
    while (fed < kInputsOfEach && !HasFailure()) {
      feed(mutator.next());
      ++fed;
    }
    EXPECT_EQ(fed, kInputsOfEach);
  }
  // A warning that starts with an item of the input.
  static void expect_quoted(const std::string& warning, const std::string& input) {
    const std::string item = warning.substr(0, warning.find(" in env var "));
    EXPECT_NE(shown(input, false, true).find(item.substr(0, 16)), std::string::npos)
        << "input: " << input << "\nwarning: " << warning;
  }
  std::string take_line() {
    const auto all = lines(OPENREG_LOG_WARNING);
    return all.empty() ? "" : all.back();
  }
};

TEST_F(VariablesFuzzTest, Names) {
  each("names", 1, [](const std::string& input) {
    const Exact exact(input);
    char name[32] = "";
    if (openreg_driver_canonical_name(exact.text(), name) != OPENREG_OK) {
      expect_named(last_message(), input);
      EXPECT_EQ(openreg_driver_expand_name(exact.text(), nullptr, 0), 0);
      return;
    }
    const size_t length = std::strlen(name);
    EXPECT_TRUE(length >= 1 && length <= 31);
    EXPECT_EQ(std::strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_"), length);
    EXPECT_GE(openreg_driver_expand_name(name, nullptr, 0), 1);
  });
}

// A list of unknown drivers is refused with the first of them, by the rule that reads OPENREG_DRIVERS.
TEST_F(VariablesFuzzTest, Lists) {
  set("OPENREG_SIM_DEVICES", "1");
  each("lists", 2, [](const std::string& input) {
    const Exact exact(input);
    openreg_clear_error();
    if (openreg_drivers_use(exact.text()) == OPENREG_OK) return;
    const std::string message = last_message();
    bool is_named = false;
    const char* item;
    size_t length;
    for (const char* cursor = exact.text(); openreg_list_next(&cursor, &item, &length);) {
      char name[32];
      std::string part = shown(std::string(item, std::min<size_t>(length, 16)), length > 16);
      if (openreg_driver_name_resolve(item, length, name)) part = std::string(name).substr(0, 16);
      is_named = is_named || message.find(part) != std::string::npos;
    }
    EXPECT_TRUE(is_named) << "input: " << input << "\nmessage: " << message;
  });
}

// Every item is read: a good one has a name and a path, one that can't be used says why, and the rest are no pairs.
TEST_F(VariablesFuzzTest, Libraries) {
  each("libraries", 3, [this](const std::string& input) {
    const Exact exact(input);
    forget_lines();
    openreg_library_item item;
    size_t read = 0, all = 0;
    for (const char* cursor = exact.text(); openreg_library_item_next(&cursor, &item);) {
      ++read;
      const std::string part(item.text, item.length);
      EXPECT_NE(input.find(part), std::string::npos);
      const auto colons = std::count(part.begin(), part.end(), ':');
      EXPECT_EQ(item.is_pair != 0, colons == 1 || (colons == 0 && part.find_first_of("/.") != std::string::npos));
      if (item.is_pair == 0 || item.problem != nullptr) continue;
      EXPECT_EQ(colons, 1);
      EXPECT_NE(item.name[0], '\0');
      EXPECT_NE(item.path[0], '\0');
      EXPECT_NE(input.find(item.path), std::string::npos);
    }
    const char* text;
    size_t length;
    for (const char* cursor = exact.text(); openreg_list_next(&cursor, &text, &length);) ++all;
    EXPECT_EQ(read, all);
    EXPECT_TRUE(lines(OPENREG_LOG_WARNING).empty());
  });
}

// What is accepted is a list of different devices that exist.
TEST_F(VariablesFuzzTest, VisibleDevices) {
  each("visible_devices", 4, [](const std::string& input) {
    const Exact exact(input);
    openreg_visible_devices out;
    if (openreg_visible_devices_read("fuzz", "toy", "OPENREG_TOY_VISIBLE_DEVICES", exact.text(), 4, &out) !=
        OPENREG_OK) {
      expect_named(last_message(), input);
      return;
    }
    EXPECT_TRUE(out.count >= 1 && out.count <= 4);
    unsigned seen = 0;
    for (int32_t i = 0; i < out.count; ++i) {
      EXPECT_TRUE(out.ordinals[i] >= 0 && out.ordinals[i] < 4);
      EXPECT_EQ(seen & 1u << out.ordinals[i], 0u);
      seen |= 1u << out.ordinals[i];
    }
  });
}

TEST_F(VariablesFuzzTest, Mocks) {
  each("mocks", 5, [this](const std::string& input) {
    const Exact exact(input);
    forget_lines();
    (void)openreg_mock_is_wanted(exact.text(), "cuda");
    EXPECT_EQ(openreg_mock_is_wanted(exact.text(), "toy"), 0) << input;
    openreg_mock_warn_of_bad_items(exact.text());
    for (const auto& warning : lines(OPENREG_LOG_WARNING)) {
      EXPECT_EQ(warning.rfind("invalid value ", 0), 0u);
      expect_quoted(warning.substr(14), input);
    }
  });
}

// Whole numbers agree with the C library's where that takes nothing but digits; the number of mock devices is refused
// with its text.
TEST_F(VariablesFuzzTest, Integers) {
  each("integers", 6, [](const std::string& input) {
    const Exact exact(input);
    int64_t value = -7;
    const bool is_digits = !input.empty() && input.find_first_not_of("0123456789") == std::string::npos;
    errno = 0;
    const unsigned long long expected = std::strtoull(input.c_str(), nullptr, 10);
    const bool is_good = is_digits && errno == 0 && expected <= INT64_MAX;
    EXPECT_EQ(openreg_integer_read(exact.text(), input.size(), 0, INT64_MAX, &value), is_good ? 1 : 0) << input;
    EXPECT_EQ(value, is_good ? static_cast<int64_t>(expected) : -7);
    openreg_options options = {nullptr, 0};
    if (openreg_mock_set_options("fuzz", "cuda", exact.text(), &options) != OPENREG_OK) {
      expect_named(last_message(), input);
    } else {
      EXPECT_EQ(options.count, 2u);
    }
    openreg_options_free(&options);
  });
}

// Seconds are refused with their text, which is then a minute, or are a number that is not negative.
TEST_F(VariablesFuzzTest, Seconds) {
  each("seconds", 7, [this](const std::string& input) {
    const Exact exact(input);
    forget_lines();
    int64_t milliseconds = -7;
    const int is_good = openreg_seconds_read(exact.text(), &milliseconds);
    const int64_t limit = openreg_open_watchdog_limit(exact.text());
    EXPECT_EQ(limit, is_good != 0 ? milliseconds : 60000);
    EXPECT_GE(limit, 0);
    if (is_good == 0) expect_named(take_line(), input, true);
  });
}

}  // namespace
