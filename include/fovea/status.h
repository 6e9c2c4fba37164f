// Status and Result: how everything the outside can cause is reported.
//
// A Status is either ok or one clear line for a person: it names the thing (file, field, flag) and the value.
// Bugs are assertions (base/check.h), never a Status.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fovea {

enum class StatusCode {
  ok = 0,
  invalid_argument,    // the caller's input is wrong (a flag, a field, a text)
  not_found,           // a file, model, request or block that is not there
  corrupt,             // data that fails its own checks (truncated, overlapping, bad digest)
  unsupported,         // well formed, but not a kind this build knows
  resource_exhausted,  // memory, pool or swap space would be exceeded
  busy,                // a bounded queue is full: try again later
  cancelled,           // aborted by the caller
  io_error,            // the operating system said no
  internal,            // an invariant broke outside an assertion
};

const char* status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message)
      : error_(code == StatusCode::ok ? nullptr : std::make_unique<Error>(Error{code, std::move(message)})) {}

  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  Status(const Status& other) : error_(other.error_ ? std::make_unique<Error>(*other.error_) : nullptr) {}
  Status& operator=(const Status& other) {
    if (this != &other) error_ = other.error_ ? std::make_unique<Error>(*other.error_) : nullptr;
    return *this;
  }

  static Status invalid_argument(std::string m) { return {StatusCode::invalid_argument, std::move(m)}; }
  static Status not_found(std::string m) { return {StatusCode::not_found, std::move(m)}; }
  static Status corrupt(std::string m) { return {StatusCode::corrupt, std::move(m)}; }
  static Status unsupported(std::string m) { return {StatusCode::unsupported, std::move(m)}; }
  static Status resource_exhausted(std::string m) { return {StatusCode::resource_exhausted, std::move(m)}; }
  static Status busy(std::string m) { return {StatusCode::busy, std::move(m)}; }
  static Status cancelled(std::string m) { return {StatusCode::cancelled, std::move(m)}; }
  static Status io_error(std::string m) { return {StatusCode::io_error, std::move(m)}; }
  static Status internal(std::string m) { return {StatusCode::internal, std::move(m)}; }

  bool ok() const { return error_ == nullptr; }
  explicit operator bool() const = delete;  // write ok(): an error must not read as true
  StatusCode code() const { return error_ ? error_->code : StatusCode::ok; }
  const std::string& message() const {
    static const std::string kEmpty;
    return error_ ? error_->message : kEmpty;
  }

  // The same error, its message led by `where: ` (a file, a request); ok stays ok.
  Status with_context(const std::string& where) const { return ok() ? Status() : Status(code(), where + ": " + message()); }

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<Error> error_;  // null: ok, so that success costs one pointer
};

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor): return v;
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor): return error;
    assert(!status_.ok() && "a Result made of a Status needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status&& status() && { return std::move(status_); }

  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T&& value() && {
    assert(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace fovea

// FOVEA_TRY(expr): return the error of a Status or Result expression, if it has one.
#define FOVEA_TRY(expr)                                                                                           \
  do {                                                                                                            \
    if (auto fovea_try_ = (expr); !fovea_try_.ok()) return ::fovea::internal_status::take(std::move(fovea_try_)); \
  } while (0)

// FOVEA_ASSIGN(auto x, expr): x is the value of a Result, or its error is returned.
#define FOVEA_ASSIGN(lhs, expr) FOVEA_ASSIGN_IMPL_(FOVEA_CONCAT_(fovea_result_, __LINE__), lhs, expr)
#define FOVEA_ASSIGN_IMPL_(tmp, lhs, expr)       \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()
#define FOVEA_CONCAT_(a, b) FOVEA_CONCAT2_(a, b)
#define FOVEA_CONCAT2_(a, b) a##b

namespace fovea::internal_status {
inline Status take(Status s) { return s; }
template <typename T>
Status take(Result<T> r) {
  return std::move(r).status();
}
}  // namespace fovea::internal_status
