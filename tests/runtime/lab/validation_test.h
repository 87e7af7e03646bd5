/* SPDX-License-Identifier: BSD-3-Clause */
/* validation_test.h: the layer of OPENREG_VALIDATE=1 in a program that holds the objects of the runtime and the lab. */
#ifndef OPENREG_TESTS_VALIDATION_TEST_H
#define OPENREG_TESTS_VALIDATION_TEST_H

#include "runtime_test.h"

extern "C" {
#include "base/error.h"
#include "validation/rules.h"
#include "validation/validation.h"
#include "watch/lab.h"
const openreg_lab_parts* openreg_lab_query(void);
}

namespace openreg_test {

constexpr char kReport[] = "OPENREG_VALIDATE: ";

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class ValidationTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    openreg_lab_linked = openreg_lab_query;  // this program holds the objects of both libraries
    set("OPENREG_VALIDATE", "1");
  }
  void TearDown() override {
    forget_lines();  // reports are these tests' business
    RuntimeTest::TearDown();
  }
  std::vector<std::string> reports() {
    std::vector<std::string> found;
    for (const auto& line : lines(OPENREG_LOG_ERROR)) {
      if (line.rfind(kReport, 0) == 0) found.push_back(line.substr(sizeof kReport - 1));
    }
    return found;
  }
};

// The layer around the driver with all functions, called as the runtime calls a driver.
class ValidationLayerTest : public ValidationTest {
 protected:
  void SetUp() override {
    ValidationTest::SetUp();
    table_ = *toy().table();
  }
  void open() {
    below_ = table_;
    const openreg_layer_site site{sizeof site, 0, &openreg_host_services, "full_toy", &below_, nullptr, 0, 0};
    ASSERT_EQ(openreg_validation_layer.open(&site, &table_, &layer_), OPENREG_OK);
    int32_t count = 0;
    ASSERT_EQ(table_.device_count(layer_, &count), OPENREG_OK);
    ASSERT_EQ(count, 2);
    for (int32_t i = 0; i < count; ++i) {
      auto info = sized<openreg_device_info>();
      ASSERT_EQ(table_.device_info(layer_, i, &info), OPENREG_OK);
    }
  }
  void close() { EXPECT_EQ(table_.close(layer_), OPENREG_OK); }
  void* allocate(int32_t device, uint64_t size) {
    void* memory = nullptr;
    EXPECT_EQ(table_.mem_alloc(layer_, device, Bytes(size), &memory), OPENREG_OK);
    return memory;
  }
  // The last report, of so many.
  std::string last_of(size_t count) {
    const auto all = reports();
    EXPECT_EQ(all.size(), count);
    return all.empty() ? "" : all.back();
  }

  openreg_driver table_{}, below_{};
  openreg_instance layer_ = nullptr;
};

}  // namespace openreg_test

#endif
