// strftime in the C locale, from a time in UTC: the conversions that templates print dates with.
#include <cstdio>

#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

constexpr const char* kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                   "July",    "August",   "September", "October", "November", "December"};

std::string number(int value, int width) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "%0*d", width, value);
  return buffer;
}

std::string convert(char letter, const std::tm& t) {
  switch (letter) {
    case 'Y':
      return number(t.tm_year + 1900, 1);
    case 'm':
      return number(t.tm_mon + 1, 2);
    case 'd':
      return number(t.tm_mday, 2);
    case 'H':
      return number(t.tm_hour, 2);
    case 'M':
      return number(t.tm_min, 2);
    case 'S':
      return number(t.tm_sec, 2);
    case 'A':
      return kDays[t.tm_wday];
    case 'a':
      return std::string(kDays[t.tm_wday], 3);
    case 'B':
      return kMonths[t.tm_mon];
    case 'b':
      return std::string(kMonths[t.tm_mon], 3);
    case '%':
      return "%";
    default:
      Runtime::fail(std::string("strftime_now: the conversion %") + letter + " is not supported", StatusCode::unsupported);
  }
}

}  // namespace

std::string format_time(std::string_view format, std::time_t when) {
  std::tm t{};
  gmtime_r(&when, &t);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
    } else {
      out += convert(format[++i], t);
    }
  }
  return out;
}

}  // namespace fovea::jinja
