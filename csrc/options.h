/* SPDX-License-Identifier: BSD-3-Clause */
// Options of a driver, from a Python dict of texts.
#pragma once

#include <openreg/driver.h>
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

namespace torch_openreg {

class Options {
 public:
  // Throws for a key or value that is no str.
  explicit Options(pybind11::handle dict) {
    for (const auto& [key, value] : pybind11::cast<pybind11::dict>(dict)) {
      texts_.emplace_back(pybind11::cast<std::string>(key), pybind11::cast<std::string>(value));
    }
    for (const auto& [key, value] : texts_) {
      options_.push_back({key.c_str(), value.c_str()});
    }
  }
  Options(const Options&) = delete; // options_ points into texts_
  Options& operator=(const Options&) = delete;

  const openreg_option* data() const noexcept {
    return options_.data();
  }
  size_t size() const noexcept {
    return options_.size();
  }

 private:
  std::vector<std::pair<std::string, std::string>> texts_;
  std::vector<openreg_option> options_;
};

} // namespace torch_openreg
