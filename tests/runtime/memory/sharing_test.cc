// SPDX-License-Identifier: BSD-3-Clause
// Device memory in several processes (sharing.h): on the simulated devices, with an exporter in a process of its own.
#include <fcntl.h>
#include <openreg/allocator.h>
#include <openreg/sharing.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <vector>

#include "../../../runtime/sharing/handle.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

constexpr size_t kSize = 4000, kLarge = size_t{12} << 20;

std::vector<unsigned char> numbers(unsigned char first) {
  std::vector<unsigned char> bytes(kSize);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

openreg_memory_handle unfilled() { return sized<openreg_memory_handle>(); }

openreg_handle_fields& fields(openreg_memory_handle& handle) {
  return reinterpret_cast<openreg_handle_fields&>(handle);
}

class SharingTest : public SimDevicesTest {
 protected:
  static std::vector<unsigned char> read_back(const void* ptr, int32_t device) {
    std::vector<unsigned char> bytes(kSize);
    EXPECT_EQ(openreg_memcpy(bytes.data(), OPENREG_HOST, ptr, device, kSize), OPENREG_OK) << last_message();
    return bytes;
  }
  static void write(void* ptr, int32_t device, unsigned char first) {
    EXPECT_EQ(openreg_memcpy(ptr, device, numbers(first).data(), OPENREG_HOST, kSize), OPENREG_OK) << last_message();
  }
  static void* allocate(int32_t device, size_t size = kSize) { return openreg_test::allocate(device, size); }
  static int64_t allocated(int32_t device) {
    auto stats = sized<openreg_memory_stats>();
    EXPECT_EQ(openreg_memory_get_stats(device, &stats), OPENREG_OK);
    return stats.allocated_bytes[0].current;
  }
  static openreg_memory_handle exported(const void* ptr) {
    openreg_memory_handle handle = unfilled();
    EXPECT_EQ(openreg_memory_export(ptr, &handle), OPENREG_OK) << last_message();
    return handle;
  }
  static openreg_status import(const openreg_memory_handle& handle, openreg_import* out, void** ptr) {
    int32_t device = -1;
    return openreg_memory_import(&handle, out, &device, ptr);
  }
  // Memory of another process, and where it is here. What a test still has when it ends is released then.
  struct Imported {
    openreg_import held;
    void* ptr;
  };
  Imported imported(const openreg_memory_handle& handle) {
    Imported now{};
    EXPECT_EQ(import(handle, &now.held, &now.ptr), OPENREG_OK) << last_message();
    owned_.add(now.held, [this, held = now.held] { drop(held); });
    return now;
  }
  void drop(openreg_import held) {
    EXPECT_EQ(openreg_import_release(held), OPENREG_OK) << last_message();
    owned_.remove(held);
  }
};

// A process that exports a block of openreg:1, and then does as it is told, a letter at a time.
class Exporter {
 public:
  explicit Exporter(bool is_growing = false) : is_growing_(is_growing) {
    EXPECT_EQ(pipe(commands_), 0);
    EXPECT_EQ(pipe(answers_), 0);
    child_ = fork();
    if (child_ == 0) {
      alarm(60);
      _exit(work());
    }
    handle = received();
    second = received();
  }
  ~Exporter() {
    stop();
    for (const int end : {commands_[0], commands_[1], answers_[0], answers_[1]}) close(end);
  }
  int ask(char command) {
    char answer = -1;
    EXPECT_EQ(::write(commands_[1], &command, 1), 1);
    EXPECT_EQ(::read(answers_[0], &answer, 1), 1);
    return answer;
  }
  // The end of another block, behind which the block's segment has grown.
  openreg_memory_handle grown() {
    EXPECT_EQ(ask('g'), OPENREG_OK);
    return received();
  }
  void stop() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  openreg_memory_handle handle = unfilled(), second = unfilled();  // of the block, and of its part behind 512 bytes

 private:
  using Bytes = std::array<char, sizeof(openreg_memory_handle)>;

  openreg_memory_handle received() const {
    Bytes bytes{};
    EXPECT_EQ(::read(answers_[0], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return std::bit_cast<openreg_memory_handle>(bytes);
  }
  bool sent(const openreg_memory_handle& value) const {
    const auto bytes = std::bit_cast<Bytes>(value);
    return ::write(answers_[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  }

  int work() {
    void* block = nullptr;
    std::vector<unsigned char> bytes = numbers(1);
    auto settings = sized<openreg_allocator_settings>();
    if (openreg_allocator_get_settings(&settings) != OPENREG_OK) return 1;
    settings.expandable_segments = is_growing_;
    if (openreg_allocator_set_settings(&settings) != OPENREG_OK) return 1;
    const size_t size = is_growing_ ? kLarge : kSize;
    // Not the first block of its segment.
    if (openreg_malloc(1, 0, size / 6, &block) != OPENREG_OK || openreg_malloc(1, 0, size, &block) != OPENREG_OK ||
        openreg_memcpy(block, 1, bytes.data(), OPENREG_HOST, kSize) != OPENREG_OK ||
        openreg_memory_export(block, &handle) != OPENREG_OK ||
        openreg_memory_export(static_cast<char*>(block) + 512, &second) != OPENREG_OK)
      return 1;
    if (!sent(handle) || !sent(second)) return 1;
    for (char command = 0; ::read(commands_[0], &command, 1) == 1;) {
      int answer = -1;
      auto info = sized<openreg_pointer_info>();
      if (command == 'r' && openreg_memcpy(bytes.data(), OPENREG_HOST, block, 1, kSize) == OPENREG_OK)
        answer = bytes[0];                                                                             // read
      if (command == 'f') answer = openreg_free(block);                                                // free
      if (command == 'c') answer = openreg_memory_collect_exports();                                   // collect
      if (command == 'l' && openreg_pointer_get_info(block, &info) == OPENREG_OK) answer = info.live;  // is it live?
      if (command == 'g') answer = grow();
      const char byte = static_cast<char>(answer);
      if (::write(answers_[1], &byte, 1) != 1 || (command == 'g' && !sent(second))) return 1;
    }
    return 0;
  }

  openreg_status grow() {
    void* block = nullptr;
    if (openreg_malloc(1, 0, kLarge, &block) != OPENREG_OK) return OPENREG_E_NOMEM;
    char* const end = static_cast<char*>(block) + kLarge - kSize;
    const openreg_status status = openreg_memcpy(end, 1, numbers(9).data(), OPENREG_HOST, kSize);
    return status == OPENREG_OK ? openreg_memory_export(end, &second) : status;
  }

  const bool is_growing_;
  int commands_[2] = {}, answers_[2] = {};
  pid_t child_ = -1;
};

// What one process writes the other reads, both ways, through every kind of access; the memory counts as a live block.
TEST_F(SharingTest, BothSidesSeeWhatIsWritten) {
  Exporter other;
  openreg_import import = nullptr;
  int32_t device = -1;
  void* ptr = nullptr;
  ASSERT_EQ(openreg_memory_import(&other.handle, &import, &device, &ptr), OPENREG_OK) << last_message();
  EXPECT_EQ(device, 1);
  EXPECT_EQ(read_back(ptr, 1), numbers(1));
  write(ptr, 1, 77);
  EXPECT_EQ(other.ask('r'), 77);
  void* host = nullptr;
  ASSERT_EQ(openreg_host_alias(ptr, &host), OPENREG_OK) << last_message();
  static_cast<unsigned char*>(host)[0] = 78;
  EXPECT_EQ(other.ask('r'), 78);
  ASSERT_EQ(openreg_memset_async(1, OPENREG_STREAM_DEFAULT, ptr, 79, 10), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_device_synchronize(1), OPENREG_OK);
  EXPECT_EQ(other.ask('r'), 79);
  void* own = allocate(0);
  EXPECT_EQ(openreg_memcpy(own, 0, ptr, 1, kSize), OPENREG_OK) << last_message();
  EXPECT_EQ(read_back(own, 0)[9], 79);
  EXPECT_EQ(openreg_free(own), OPENREG_OK);

  auto info = pointer_info(ptr);
  EXPECT_EQ(info.kind, OPENREG_POINTER_DEVICE);
  EXPECT_EQ(info.device, 1);
  EXPECT_EQ(info.live, 1);
  EXPECT_EQ(allocated(1), 0);  // it is not this process's
  EXPECT_EQ(openreg_import_release(import), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_pointer_get_info(ptr, &info), OPENREG_OK);
  EXPECT_EQ(info.kind, OPENREG_POINTER_UNKNOWN);
}

// Of one allocation there is one mapping; a handle of a part leads to that part.
TEST_F(SharingTest, PartsOfOneAllocation) {
  Exporter other;
  const Imported whole = imported(other.handle), part = imported(other.second);
  EXPECT_EQ(static_cast<char*>(part.ptr) - static_cast<char*>(whole.ptr), 512);
  drop(whole.held);
  EXPECT_EQ(openreg_memset_async(1, OPENREG_STREAM_DEFAULT, part.ptr, 5, 1), OPENREG_OK) << last_message();
}

// A segment that has grown since its last export is exported as it is now, beside what is open of it already.
TEST_F(SharingTest, SegmentsThatGrow) {
  Exporter other(/*is_growing=*/true);
  openreg_memory_handle later = other.grown();
  EXPECT_GT(fields(later).offset, fields(other.handle).allocation_size);
  EXPECT_NE(std::memcmp(&fields(later).allocation, &fields(other.handle).allocation, sizeof(openreg_ipc_handle)), 0);
  const Imported before = imported(other.handle), after = imported(later);
  EXPECT_EQ(read_back(before.ptr, 1), numbers(1));
  EXPECT_EQ(read_back(after.ptr, 1), numbers(9));
  write(before.ptr, 1, 77);
  EXPECT_EQ(other.ask('r'), 77);
  drop(before.held);
  EXPECT_EQ(read_back(after.ptr, 1), numbers(9));
}

// A block that its owner frees stays until the last holder has released it.
TEST_F(SharingTest, AFreedBlockWaitsForItsHolders) {
  Exporter other;
  Imported first = imported(other.handle);
  const Imported again = imported(other.handle);
  EXPECT_EQ(other.ask('f'), OPENREG_OK);
  EXPECT_EQ(other.ask('l'), 1);
  EXPECT_EQ(other.ask('f'), OPENREG_E_INVALID);  // twice
  EXPECT_EQ(read_back(again.ptr, 1), numbers(1));
  drop(first.held);
  drop(again.held);
  EXPECT_EQ(other.ask('c'), 0);  // the second handle may yet be imported
  drop(imported(other.second).held);
  EXPECT_EQ(other.ask('c'), 1);
  EXPECT_EQ(other.ask('l'), 0);
  EXPECT_EQ(import(other.handle, &first.held, &first.ptr), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "was imported and released already");
}

// A process that ends takes its hold of the memory with it, whether it ends in order, by a signal, or has not been waited
// for yet; what others hold stays.
TEST_F(SharingTest, ForkedHoldersThatHaveEndedHoldNothing) {
  for (const char* end : {"exit", "signal", "zombie"}) {
    SCOPED_TRACE(end);
    Exporter other;
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      openreg_import held = nullptr;
      void* ptr = nullptr;
      bool imported = true;
      for (const auto& handle : {other.handle, other.handle, other.second}) {
        imported = imported && import(handle, &held, &ptr) == OPENREG_OK;
      }
      if (std::string(end) == "signal") raise(SIGKILL);
      _exit(imported ? 0 : 1);
    }
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(info.si_status, std::string(end) == "signal" ? SIGKILL : 0);
    if (std::string(end) != "zombie") {
      ASSERT_EQ(waitpid(child, nullptr, 0), child);
    }
    EXPECT_EQ(other.ask('f'), OPENREG_OK);
    EXPECT_EQ(other.ask('l'), 0);  // freed with the call, as nobody holds it
    if (std::string(end) == "zombie") {
      ASSERT_EQ(waitpid(child, nullptr, 0), child);
    }
  }
}

// Likewise where another process holds it too, and where the process's number is in use again.
TEST_F(SharingTest, ForkedHoldersAreToldApart) {
  Exporter other;
  EXPECT_TRUE(in_child([&] {
    openreg_import held = nullptr;
    void* ptr = nullptr;
    return import(other.handle, &held, &ptr) == OPENREG_OK && import(other.second, &held, &ptr) == OPENREG_OK;
  }));
  const Imported first = imported(other.handle);
  imported(other.handle);
  EXPECT_EQ(other.ask('f'), OPENREG_OK);
  EXPECT_EQ(other.ask('l'), 1);
  drop(first.held);
  EXPECT_EQ(other.ask('c'), 0);

  // The holder's note in the exporter's file (leases.c): a word, then four times a process and its start.
  const std::string path =
      "/proc/" + std::to_string(fields(other.handle).process) + "/fd/" + std::to_string(fields(other.handle).leases);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  uint64_t slot[9] = {};
  const off_t at = static_cast<off_t>(fields(other.handle).slot * sizeof slot);
  ASSERT_EQ(pread(file, slot, sizeof slot, at), static_cast<ssize_t>(sizeof slot));
  int notes = 0;
  for (int i = 1; i < 9; i += 2) {
    if (slot[i] == 0) continue;
    EXPECT_EQ(slot[i], uint64_t(getpid()) << 32 | 1);
    EXPECT_NE(slot[i + 1], 0U);
    slot[i + 1] -= 1;  // a process of this number that began earlier
    ++notes;
  }
  EXPECT_EQ(notes, 1);
  ASSERT_EQ(pwrite(file, slot, sizeof slot, at), static_cast<ssize_t>(sizeof slot));
  close(file);
  EXPECT_EQ(other.ask('c'), 1);
  EXPECT_EQ(other.ask('l'), 0);
}

// Memory that was imported outlives the exporter; a handle does not.
TEST_F(SharingTest, TheExporterEnds) {
  Exporter other;
  Imported now = imported(other.handle);
  other.stop();
  EXPECT_EQ(read_back(now.ptr, 1), numbers(1));
  drop(now.held);
  EXPECT_EQ(import(other.second, &now.held, &now.ptr), OPENREG_E_INVALID);
  EXPECT_CONTAINS(last_message(), "has ended; it must live until the memory was imported");
}

// Imported memory can't be freed or exported, and keeps the table from going.
TEST_F(SharingTest, WhatIsImportedIsNotOurs) {
  Exporter other;
  void* const ptr = imported(other.handle).ptr;
  expect_error(openreg_free(ptr), OPENREG_E_INVALID, "is memory of another process; openreg_import_release()");
  openreg_memory_handle handle = unfilled();
  expect_error(openreg_memory_export(ptr, &handle), OPENREG_E_INVALID, "which only that process can export");
  openreg_stream stream = from_pool(1);
  EXPECT_EQ(openreg_memory_record_stream(ptr, 1, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_shutdown(), OPENREG_E_BUSY);
}

// The exporter imports its own handle and gets its own address; the block waits for that holder too.
TEST_F(SharingTest, InOneProcess) {
  void* block = allocate(1);
  const Imported now = imported(exported(block));
  EXPECT_EQ(now.ptr, block);
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  write(now.ptr, 1, 3);
  EXPECT_GT(allocated(1), 0);
  drop(now.held);
  EXPECT_EQ(allocated(1), 0);
  EXPECT_EQ(openreg_free(block), OPENREG_E_INVALID);
}

// A block exported and held by nobody any more is freed like any other, also while a stream uses it.
TEST_F(SharingTest, NobodyHoldsIt) {
  void* block = allocate(1);
  drop(imported(exported(block)).held);
  EXPECT_EQ(openreg_memory_record_stream(block, 1, from_pool(1)), OPENREG_OK);
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  EXPECT_EQ(allocated(1), 0);
  void* next = allocate(1);  // a new block at the old address is not shared
  EXPECT_EQ(openreg_free(next), OPENREG_OK);
  EXPECT_EQ(allocated(1), 0);
}

// Refusals: what is no block, no handle, no such device.
TEST_F(SharingTest, Refusals) {
  openreg_memory_handle handle = unfilled();
  openreg_import import_ = nullptr;
  int32_t device = -1;
  void* ptr = nullptr;
  int local = 0;
  EXPECT_EQ(openreg_memory_export(nullptr, &handle), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_export(&local, &handle), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_memory_export(&local, nullptr), OPENREG_E_INVALID);
  handle.struct_size = 0;
  expect_error(openreg_memory_import(&handle, &import_, &device, &ptr), OPENREG_E_INVALID, "invalid memory handle");
  EXPECT_EQ(openreg_memory_import(nullptr, &import_, &device, &ptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_import_release(nullptr), OPENREG_OK);
  Exporter other;
  openreg_memory_handle changed = other.handle;
  fields(changed).slot = 1u << 20;
  EXPECT_EQ(import(changed, &import_, &ptr), OPENREG_E_INVALID);
  changed = other.handle;
  fields(changed).offset = fields(changed).allocation_size + 1;
  EXPECT_EQ(import(changed, &import_, &ptr), OPENREG_E_INVALID);
  drop(imported(other.handle).held);
}

// A handle whose bytes were changed on the way is refused, though it is in itself consistent: the sizes and the address
// are those of the export or the handle is none. The true one loses nothing by it.
TEST_F(SharingTest, ForgedHandles) {
  Exporter other;
  void* block = allocate(1);
  for (const bool is_own : {false, true}) {
    const openreg_memory_handle handle = is_own ? exported(block) : other.second;
    openreg_import import_ = nullptr;
    void* ptr = nullptr;
    const auto refused = [&](auto change) {
      openreg_memory_handle changed = handle;
      change(changed);
      EXPECT_EQ(import(changed, &import_, &ptr), OPENREG_E_INVALID);
      EXPECT_CONTAINS(last_message(), "invalid memory handle");
    };
    refused([](openreg_memory_handle& changed) { fields(changed).allocation_size *= 2; });
    refused([](openreg_memory_handle& changed) { fields(changed).allocation_size = uint64_t{1} << 40; });
    refused([](openreg_memory_handle& changed) { fields(changed).allocation_size -= 4096; });
    refused([](openreg_memory_handle& changed) { changed.size += 1; });
    refused([](openreg_memory_handle& changed) { fields(changed).offset -= 512; });
    refused([](openreg_memory_handle& changed) { fields(changed).address += 512; });
    refused([](openreg_memory_handle& changed) { fields(changed).uuid[0] ^= 1; });
    refused([](openreg_memory_handle& changed) { fields(changed).allocation.bytes[0] ^= 1; });
    for (size_t i = sizeof handle.struct_size; i < sizeof handle; ++i) {
      openreg_memory_handle changed = handle;
      reinterpret_cast<unsigned char*>(&changed)[i] ^= 0x10;
      EXPECT_NE(import(changed, &import_, &ptr), OPENREG_OK) << i;
    }
    drop(imported(handle).held);
  }
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  EXPECT_EQ(allocated(1), 0);
}

// A process without the exporter's device says which one it lacks, and takes nothing from the handle.
TEST_F(SharingTest, TheDeviceIsNotThere) {
  Exporter other;
  openreg_import import_ = nullptr;
  void* ptr = nullptr;
  set("OPENREG_SIM_DEVICES", "1");
  EXPECT_EQ(import(other.handle, &import_, &ptr), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(last_message(), "device 1 of driver \"sim\"");
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_SIM_DEVICES", "2");
  drop(imported(other.handle).held);
}

// Whatever file of the exporter a handle names: it is opened for writing only if it is a file in memory of this user that
// nobody can make shorter. Each file here has the very bytes that the true one has.
TEST_F(SharingTest, HandlesNameNoOtherFile) {
  Exporter other;
  const std::string place = "/proc/" + std::to_string(fields(other.handle).process) + "/fd/";
  const int from = open((place + std::to_string(fields(other.handle).leases)).c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status{};
  ASSERT_EQ(fstat(from, &status), 0);
  std::vector<char> bytes(4096), after(4096);
  const auto refers_to = [&](int file) {
    openreg_memory_handle changed = other.handle;
    EXPECT_EQ(fstat(file, &status), 0);
    fields(changed).process = getpid();
    fields(changed).leases = file;
    fields(changed).leases_device = status.st_dev;
    fields(changed).leases_inode = status.st_ino;
    return changed;
  };
  for (const std::string kind : {"on disk", "to be shrunk", "another user's"}) {
    SCOPED_TRACE(kind);
    if (kind == "another user's" && geteuid() != 0) continue;
    char path[] = "/tmp/openreg-sharing-XXXXXX";
    const int file = kind == "on disk" ? mkstemp(path) : memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_GE(file, 0);
    if (kind == "on disk") unlink(path);
    ASSERT_EQ(ftruncate(file, status.st_size), 0);
    const openreg_memory_handle changed = refers_to(file);
    ASSERT_EQ(pread(from, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    // The record says where it is, too: the last place where a forger's copy would differ.
    constexpr size_t at = offsetof(openreg_handle_fields, process), end = offsetof(openreg_handle_fields, offset);
    void* record = memmem(bytes.data(), bytes.size(), reinterpret_cast<const char*>(&other.handle) + at, end - at);
    if (record != nullptr) std::memcpy(record, reinterpret_cast<const char*>(&changed) + at, end - at);
    ASSERT_EQ(pwrite(file, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    if (kind == "another user's") {
      ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
      ASSERT_EQ(fchown(file, 12345, 12345), 0);
    }
    openreg_import import_ = nullptr;
    void* ptr = nullptr;
    EXPECT_EQ(import(changed, &import_, &ptr), OPENREG_E_INVALID);
    ASSERT_EQ(pread(file, after.data(), after.size(), 0), static_cast<ssize_t>(after.size()));
    EXPECT_EQ(after, bytes);
    close(file);
  }
  close(from);
}

// The files of shared memory are this user's alone, and nobody can shorten them under who has them mapped.
TEST_F(SharingTest, FilesAreSealed) {
  void* block = allocate(1);
  imported(exported(block));
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.find("memfd:openreg-") == std::string::npos) continue;
    const int file = std::stoi(entry.path().filename().string());
    struct stat status{};
    ASSERT_EQ(fstat(file, &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600U) << target;
    EXPECT_NE(ftruncate(file, status.st_size - 4096), 0) << target;
    EXPECT_NE(ftruncate(file, status.st_size + 4096), 0) << target;
    ++found;
  }
  EXPECT_GE(found, 3);  // two devices and the leases
}

// In a forked child whose parent has open drivers everything is refused, and the parent's leases stay as they are.
TEST_F(SharingTest, AForkedChild) {
  void* block = allocate(1);
  const openreg_memory_handle handle = exported(block);
  Imported now = imported(handle);
  EXPECT_TRUE(in_child([&] {
    openreg_memory_handle other = unfilled();
    return openreg_memory_export(block, &other) == OPENREG_E_FORKED &&
           import(handle, &now.held, &now.ptr) == OPENREG_E_FORKED && openreg_memory_collect_exports() == 0 &&
           openreg_import_release(now.held) == OPENREG_E_FORKED;
  }));
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  EXPECT_GT(allocated(1), 0);
  drop(now.held);
  EXPECT_EQ(allocated(1), 0);
}

// A driver without the extension says so, and what to do instead.
TEST_F(SharingTest, ADriverThatCannotShare) {
  use_full_toy();
  void* block = allocate(0);
  openreg_memory_handle handle = unfilled();
  EXPECT_EQ(openreg_memory_export(block, &handle), OPENREG_E_UNSUPPORTED);
  EXPECT_CONTAINS(last_message(), "can't share memory with other processes; copy to the host first");
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  EXPECT_EQ(allocated(0), 0);
}

// Windows onto other processes' memory come and go without using up a device's addresses.
TEST_F(SharingTest, ManyImports) {
  Exporter other;
  const Imported held = imported(other.second);
  for (int i = 0; i < 200; ++i) drop(imported(other.second).held);
  drop(held.held);
  allocate(1, 60 << 20);  // of 64 MiB
}

}  // namespace
}  // namespace openreg_test
