// The filters, tests and global functions by name.
#pragma once

#include <string_view>

#include "text/jinja/runtime.h"

namespace fovea::jinja {

using Filter = Value (*)(Runtime& rt, const Value& value, const Args& args);
using Test = bool (*)(Runtime& rt, const Value& value, const Args& args);

Filter find_filter(std::string_view name);  // null when there is none
Test find_test(std::string_view name);
Value call_filter(Runtime& rt, std::string_view name, const Value& value, const Args& args);
bool call_test(Runtime& rt, std::string_view name, const Value& value, const Args& args);

// range, dict, namespace, raise_exception, strftime_now; null when there is no such global.
Function::Body find_global(std::string_view name);

}  // namespace fovea::jinja
